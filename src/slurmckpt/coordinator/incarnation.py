"""One incarnation of a job on this node: what is fixed once the lease is taken."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from slurmckpt.config import Settings
from slurmckpt.coordinator import fence, gpu_answer, node, rules, staging
from slurmckpt.coordinator.commands import Commands
from slurmckpt.coordinator.gpus import Gpus
from slurmckpt.coordinator.journal import Journal
from slurmckpt.coordinator.plan import Plan, Planner
from slurmckpt.coordinator.recovery import events
from slurmckpt.coordinator.rules import Rules
from slurmckpt.coordinator.script.marks import Marks
from slurmckpt.coordinator.script.script import Script
from slurmckpt.coordinator.spec import JobSpec
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.waitingprolog import WaitingProlog
from slurmckpt.errors import SlurmckptError
from slurmckpt.store import lease, retention
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore
from slurmckpt.store.manifest import Manifest

log = logging.getLogger(__name__)


@dataclass
class Incarnation:
    """epoch: number of this incarnation. plan: the checkpoint it goes on from.

    cold_start: why there is no plan although the job ran before. script: the running batch task, where its sruns have a
    stand-in. marks: of its sruns, over all tries of a restore. starting: held while a step is started, or while a cut
    is taken: a step that begins is in neither half.
    at_end: told of each step when its pod has ended, while its streams are still open. disowned: the highest number
    that an earlier incarnation may still be writing. superseded: why this one has lost its lease.
    """

    spec: JobSpec
    settings: Settings
    node: node.Node
    files: UserFiles
    store: JobStore
    epoch: int
    journal: Journal
    planner: Planner
    staging: Path
    shm: Path
    plan: Plan | None = None
    cold_start: str | None = None
    script: Script | None = None
    marks: Marks = field(default_factory=Marks)
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    at_end: Callable[[Step], None] = lambda _: None
    disowned: int = 0
    superseded: str = ""
    gpus: Gpus = field(default_factory=Gpus)

    @property
    def enter(self) -> Path:
        """The program that enters a pod."""
        return self.settings.paths.libexec / "enter"

    @cached_property
    def commands(self) -> Commands:
        """The hook commands of site and job."""
        return Commands(self.enter, self.settings.hooks, self.spec.options, self.journal)

    async def advance(self) -> None:
        """Take the next older checkpoint as the plan; without one, the job cold-starts with the reason."""
        if self.plan is not None:
            self.plan.discard()
        self.plan = await self.planner.next()
        if self.plan is None:
            await self.start_cold(self.planner.cold_start_reason())

    async def start_cold(self, reason: str) -> None:
        """Give up restoring in this incarnation."""
        self.plan = None
        self.cold_start = reason
        log.warning("job %d: cold start: %s", self.spec.job.job_id, reason)
        await self.journal.cold_start(reason, self.planner.refused)


async def begin(
    spec: JobSpec,
    settings: Settings,
    asking: Awaitable[Rules] | None = None,
    prolog: WaitingProlog | None = None,
) -> Incarnation:
    """Examine the node, take the lease, choose the checkpoint.

    asking: what Slurm's rules for this job are, being found out meanwhile. prolog: what waits for the lease.
    Raises SlurmckptError or OSError: then the job runs without checkpoints; rules.Pointless: they would be of no use.
    """
    rules.check(spec, Rules())
    if spec.node_count > 1:
        # One question for each job, and not for each of its nodes.
        rules.check(spec, await asking if asking is not None and spec.leads else Rules())
        raise rules.several_nodes(spec)
    here = await node.examine(settings)
    known = await asking if asking is not None else Rules()
    rules.check(spec, known)
    groups = os.getgrouplist(spec.job.user, spec.job.gid)
    files = UserFiles.for_user(spec.job.uid, spec.job.gid, groups, settings.store.patience)
    try:
        store = JobStore(spec.options.directory or settings.store.path, spec.job)
        await store.prepare(files, by_root=spec.options.directory is None)
        directory = await asyncio.to_thread(staging.prepare, settings, spec.job.job_id)
        await asyncio.to_thread(staging.sweep, settings)
        epoch = await lease.take(store, files, spec.node, spec.restart_count + 1)
        taken = time.monotonic()
        in_time = prolog is None or prolog.let_go()
        disowned = await retention.disown(store, files)
        journal = await Journal.open(store, files, spec, epoch, known.job, str(spec.interval(settings)))

        def unfit(manifest: Manifest) -> str:
            if manifest.script_status is not None:
                return "it says only that the script had ended" if incarnation.planner.refused else ""
            if prolog is not None and not in_time and manifest.created > prolog.since:
                return "it was taken after this start had begun, when Slurm may have emptied the job's output"
            return node.differences(here, settings, spec, manifest.fingerprint)

        incarnation = Incarnation(
            spec=spec,
            settings=settings,
            node=here,
            files=files,
            store=store,
            epoch=epoch,
            journal=journal,
            planner=Planner(store, files, here.key, directory, unfit),
            staging=directory,
            shm=settings.paths.run / str(spec.job.job_id) / "shm",
            disowned=disowned,
            gpus=Gpus(
                settings.gpu,
                settings.capture.timeout,
                known_failure=lambda: gpu_answer.failure(settings, here.fingerprint),
                present=any(key.startswith("gpu.") for key in here.fingerprint),
            ),
        )
        incarnation.planner.removed = journal.removed
        incarnation.planner.unknown = not journal.knows_earlier_ones
        if epoch > 1:
            if spec.first_start:
                await incarnation.start_cold("an earlier job had this job's number; its checkpoints are removed")
                with contextlib.suppress(SlurmckptError):
                    await retention.remove_all(store, files)
            elif spec.options.fresh:
                await incarnation.start_cold("--checkpoint-fresh asks for it")
            elif settings.restore.attempts == 0:
                await incarnation.start_cold("restore.attempts is 0 on this node")
            elif reason := events.unwanted(spec.recover(settings), journal.last_outcome):
                await incarnation.start_cold(reason)
            else:
                await incarnation.advance()
        if journal.follows_a_lost_one:
            await fence.wait_for_the_other(spec.job, settings.store.lease_watch, taken)
        return incarnation
    except BaseException:
        # Its thread may hang in a store that does not answer, and the tasks wait for us.
        files.close(wait=False)
        raise
