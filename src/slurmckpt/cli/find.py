"""Where a job's record lies in the store: by its id, by the task of an array, or all that the caller may read."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import click

from slurmckpt.cli.jobid import JobName
from slurmckpt.errors import SlurmckptError, SlurmError
from slurmckpt.identity import JobIdentity
from slurmckpt.slurm.select import select
from slurmckpt.store.layout import JobStore
from slurmckpt.store.record import read

# What --checkpoint-dir takes in a command: a misspelt one would look like a store without jobs.
STORE = click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)


def stores(root: Path, job_id: int | None = None) -> list[JobStore]:
    """The job directories below the store's root that this user may read, oldest job first. job_id: only this one."""
    pattern = f"*/{'*' if os.getuid() == 0 or job_id else _own_name()}/{job_id or '*'}"
    return sorted(_readable(root, pattern), key=lambda store: store.job.job_id)


def stores_of(root: Path, job: JobName) -> list[JobStore]:
    """Those of the job, or of the task or tasks of an array, that a user named. Empty when there are none."""
    try:
        found = asyncio.run(select().array(job.number))
    except SlurmError:
        return _remembered(root, job)
    # The raw id of one task is also that of its array: who names it means the array, as for scontrol.
    tasks = [each for each in found if each.array_task is not None and each.array_id == job.number]
    if job.task is not None:
        ids = [each.job_id for each in tasks if each.array_task == job.task]
    else:
        ids = [each.job_id for each in tasks] or [job.number]
    # Of a task that Slurm has forgotten, while it knows others of the array, the record still knows.
    known = [store for job_id in ids for store in stores(root, job_id)]
    return known or _remembered(root, job)


def unknown(root: Path, job: JobName) -> SlurmckptError:
    """Why there is nothing of this job, for its user."""
    return SlurmckptError(
        f"no record of job {job} in {root} that you may read: it has not started yet, or runs without checkpoints"
        " (where it asked for them, its output says why), or has another --checkpoint-dir"
    )


def _remembered(root: Path, job: JobName) -> list[JobStore]:
    """What the records themselves say, for jobs that Slurm has forgotten."""
    if job.task is not None:
        return [store for store in stores(root) if read(store).array == str(job)]
    own = stores(root, job.number)
    if not any(read(store).array for store in own):
        return own
    return [store for store in stores(root) if read(store).array.partition("_")[0] == str(job.number)] or own


def _readable(root: Path, pattern: str) -> Iterator[JobStore]:
    for path in root.glob(pattern):
        try:
            if path.name.isascii() and path.name.isdigit() and path.is_dir() and os.access(path, os.R_OK):
                owner = path.stat()
                job = JobIdentity(path.parts[-3], path.parts[-2], owner.st_uid, owner.st_gid, int(path.name))
                yield JobStore(root, job)
        except (OSError, ValueError):
            continue


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        raise SlurmckptError(f"user id {os.getuid()} has no account on this host; name the job") from error
