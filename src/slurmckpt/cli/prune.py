"""`slurmckpt prune`: remove the checkpoints of jobs that will not need them any more."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from slurmckpt import config
from slurmckpt.cli import find
from slurmckpt.errors import SlurmckptError
from slurmckpt.slurm import states
from slurmckpt.slurm.select import select
from slurmckpt.store import leftovers, record, retention
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.leftovers import Leftover, Owner

Result = TypeVar("Result")

_DAY = 86400.0


@click.command("prune")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--quiet", is_flag=True, help="Say nothing but errors.")
@click.option(
    "--checkpoint-dir",
    "directory",
    type=find.STORE,
    help="Store of jobs that were submitted with this option.",
)
def command(dry_run: bool, quiet: bool, directory: Path | None) -> None:
    """Remove the checkpoints of jobs that have ended for good: your own, or as root those of all users.

    At once those of jobs that COMPLETED or were CANCELLED; after store.image_days those of jobs that ended otherwise,
    which `scontrol requeue` could bring back, and of jobs that Slurm does not know any more. Without an answer from
    Slurm nothing is removed. Run it from time to time: slurmckpt-prune.timer.
    """
    settings = config.load()
    pruner = Pruner(directory or settings.store.path, settings.store, dry_run, quiet)
    if not asyncio.run(pruner.run()):
        sys.exit(1)


def reason(state: str | None, age: float, image_days: int) -> str:
    """Why a job's checkpoints are to go, as the end of a sentence; empty when they stay.

    state: for Slurm, one word; None: it does not know the job. age: days since anything changed in its directory.
    """
    if state is not None and states.over({state}) and states.ended({state}):
        return f"it has ended ({state})"
    if age <= image_days or (state is not None and not states.ended({state})):
        return ""
    since = f"{int(age)} day{'' if int(age) == 1 else 's'}"
    return (
        f"it has ended ({state}), {since} ago" if state else f"Slurm does not know it, and nothing changed for {since}"
    )


class Pruner:
    """One run over the store at `root`."""

    def __init__(self, root: Path, settings: config.Store, dry_run: bool, quiet: bool) -> None:
        self._root = root
        self._image_days = settings.image_days
        self._record_days = settings.record_days
        self._dry_run = dry_run
        self._quiet = quiet
        self._done = True
        self._count = 0

    async def run(self) -> bool:
        """Whether everything could be done. Raises SlurmckptError when Slurm or the store cannot be asked."""
        port = select()
        cluster = (await port.config()).get("ClusterName", "")
        if not cluster:
            raise SlurmckptError("Slurm does not say the cluster's name")
        owners = leftovers.owners(self._root, cluster)
        # First the store, then Slurm: a job that starts after this look has no checkpoint in it.
        found = {owner: await self._for(owner, self._list) for owner in owners}
        known = {line.job_id: line.state for line in await port.job_lines()}

        async def prune(owner: Owner, files: UserFiles) -> None:
            for leftover in found[owner] or ():
                await self._prune(leftover, known.get(leftover.store.job.job_id), files)
            if not self._dry_run:
                await retention.forget(leftovers.nobodys(owner, self._root), files, self._record_days)

        for owner in owners:
            await self._for(owner, prune)
        if self._done and not self._count and not self._quiet:
            seen = sum(len(each or ()) for each in found.values())
            jobs = f"{seen} job{' has' if seen == 1 else 's have'}" if seen else "no job has"
            click.echo(f"nothing to remove: {jobs} checkpoints in {self._root}{', all still of use' if seen else ''}")
        return self._done

    async def _for(self, owner: Owner, work: Callable[[Owner, UserFiles], Awaitable[Result]]) -> Result | None:
        """Do something with an owner's rights. What fails is said, and costs the others nothing."""
        try:
            with owner.files() as files:
                return await work(owner, files)
        except SlurmckptError as error:
            self._fail(error)
            return None

    async def _list(self, owner: Owner, files: UserFiles) -> list[Leftover]:
        return await files.run(leftovers.of, owner, self._root)

    async def _prune(self, leftover: Leftover, state: str | None, files: UserFiles) -> None:
        age = (time.time() - leftover.changed) / _DAY
        why = reason(state, age, self._image_days)
        if not why:
            return
        self._count += 1
        try:
            if not self._dry_run:
                await _remove(leftover, why, files)
            self._say(leftover, why)
        except SlurmckptError as error:
            self._fail(error)

    def _fail(self, error: SlurmckptError) -> None:
        click.echo(f"Error: {error}", err=True)
        self._done = False

    def _say(self, leftover: Leftover, why: str) -> None:
        if self._quiet:
            return
        job = leftover.store.job
        count = len(leftover.seqs)
        what = f"{count} checkpoint{'' if count == 1 else 's'}" if count else "what was left of checkpoints"
        click.echo(f"job {job.job_id} of {job.user}: {what} {'would be ' if self._dry_run else ''}removed: {why}")


async def _remove(leftover: Leftover, why: str, files: UserFiles) -> None:
    """Remove what was listed, and nothing that has come since; and note it in the record, for whoever requeues it."""
    await retention.remove(leftover.store, files, leftover.seqs, leftover.partials)
    found = await record.load(leftover.store, files)
    found.removed = f"by slurmckpt prune: {why}"
    found.add_event(time.time(), f"checkpoints removed {found.removed}")
    await record.save(leftover.store, files, found)
