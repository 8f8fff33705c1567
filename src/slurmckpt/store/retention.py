"""What is kept: the newest committed checkpoints, and for some time the records of jobs that have none.

A removal starts with a rename: what is half removed is nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import stat
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from slurmckpt import faults
from slurmckpt.errors import StoreError
from slurmckpt.store.files import TEMPORARY_SUFFIX, remove_tree, replace
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import DELETED_SUFFIX, PARTIAL_SUFFIX, JobStore
from slurmckpt.store.record import read as read_record

# A temporary file lives for the moment of one small write; clocks of nodes may differ.
_TEMPORARY_SECONDS = 3600.0

_DAY = 86400.0
# A user's jobs may end by the thousand: one of them a day looks for old records.
_SWEEP_SECONDS = _DAY
_SWEPT = ".swept"
_ASKED = ".asked"
# Every checkpoint of a job that runs changes its directory.
_QUIET_SECONDS = 3600.0
# The record of a job that was lost with its node names no end, like that of a job that still runs. Few run for a year.
_LOST_DAYS = 365
_JOB = re.compile(r"([1-9][0-9]{0,9})(\.deleted)?", re.ASCII)


async def prune(store: JobStore, files: UserFiles, keep: int, protect: set[int]) -> list[int]:
    """Remove all committed checkpoints but the newest `keep` (1 or more) and those in `protect`; gives what it removed.

    protect: numbers in use, among them the one being written. Partials that a crash left go too, once a newer number is
    committed or protected: one above may belong to an incarnation that is writing it now.
    Raises StoreError with one line when something could not be removed; what could be is removed all the same.
    """
    if keep < 1:
        raise ValueError(f"keep = {keep} is not accepted: at least 1 checkpoint is kept")
    return await files.run(_prune, store, keep, frozenset(protect))


async def remove(store: JobStore, files: UserFiles, seqs: Sequence[int], partials: Sequence[int] = ()) -> None:
    """Remove these committed and these partial checkpoints, and no others. One that is gone already is fine.

    Raises StoreError with one line as prune() does.
    """
    await files.run(_remove, store, seqs, partials)


async def disown(store: JobStore, files: UserFiles) -> int:
    """Take away what earlier incarnations were writing; gives the highest number among it, 0 when there was nothing.

    To be called once the lease is taken: an earlier incarnation that has looked at the lease, and whose rename hangs on
    its way to the store, then has nothing to rename. Its numbers are not to be used again. What cannot be removed now
    is left to prune(). Raises StoreError when the store cannot be read.
    """
    return await files.run(_disown, store)


async def remove_all(store: JobStore, files: UserFiles) -> list[int]:
    """Remove all checkpoints, also partial ones; record and lease stay. Gives the committed ones that were removed.

    Raises StoreError with one line as prune() does.
    """
    return await files.run(_remove_all, store)


async def forget(store: JobStore, files: UserFiles, record_days: int) -> list[int]:
    """Remove the directories of this user's ended jobs in this store that hold no committed checkpoint any more.

    Only those whose record is older than `record_days` days, where no end is recorded at least 365 days; never that of
    `store`'s own job. Looks at most once a day for each user, whoever calls. Gives the ids of the jobs removed.
    Raises StoreError with one line when something could not be removed; what could be is removed all the same.
    """
    return await files.run(_forget, store, record_days, time.time())


async def lingering(store: JobStore, files: UserFiles) -> list[JobStore]:
    """This user's other jobs in this store that have committed checkpoints and have not changed for an hour.

    Some of them may have ended with nobody there to remove their images. Looks at most once a day for each user,
    whoever calls. Raises StoreError with one line.
    """
    return await files.run(_lingering, store, time.time())


def _prune(store: JobStore, keep: int, protect: frozenset[int]) -> list[int]:
    faults.at("retain.prune")
    committed = store.sequence_numbers()
    newest = max([*committed, *protect], default=0)
    old = [seq for seq in committed[:-keep] if seq not in protect]
    stale = [seq for seq in store.numbers(PARTIAL_SUFFIX) if seq not in protect and seq < newest]
    _remove(store, old, stale)
    return old


def _remove_all(store: JobStore) -> list[int]:
    faults.at("settle.remove")
    committed = store.sequence_numbers()
    _remove(store, committed, store.numbers(PARTIAL_SUFFIX))
    return committed


def _disown(store: JobStore) -> int:
    partials = store.numbers(PARTIAL_SUFFIX)
    with contextlib.suppress(StoreError):
        _remove(store, [], partials)
    return max(partials, default=0)


def _remove(store: JobStore, committed: Iterable[int], partials: Iterable[int]) -> None:
    failures: list[OSError] = []
    for path in [store.checkpoint(seq) for seq in committed] + [store.partial(seq) for seq in partials]:
        deleted = path.with_name(path.name.removesuffix(PARTIAL_SUFFIX) + DELETED_SUFFIX)
        try:
            remove_tree(deleted)
            os.rename(path, deleted)
        except FileNotFoundError:
            continue
        except OSError as error:
            failures.append(error)
    leftovers = [store.deleted(seq) for seq in store.numbers(DELETED_SUFFIX)]
    for path in leftovers + _old_temporaries(store):
        try:
            remove_tree(path)
        except OSError as error:
            failures.append(error)
    if failures:
        first = failures[0]
        raise StoreError(
            f"{len(failures)} of the old checkpoints in {store.dir} cannot be removed: "
            f"{first.filename or ''}: {first.strerror or first}"
        )


def _old_temporaries(store: JobStore) -> list[Path]:
    """Temporary files of writers that crashed."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(store.dir) as entries:
        for entry in entries:
            if entry.name.startswith(".") and entry.name.endswith(TEMPORARY_SUFFIX):
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_mtime < time.time() - _TEMPORARY_SECONDS:
                        found.append(Path(entry.path))
    return found


def _lingering(store: JobStore, now: float) -> list[JobStore]:
    user = store.dir.parent
    found = []
    try:
        names = [name for name in os.listdir(user) if name.isdecimal() and _JOB.fullmatch(name)]
        for name in names if _is_due(user / _ASKED, now) else []:
            other = _sibling(store, int(name))
            with contextlib.suppress(FileNotFoundError, ValueError):
                quiet = now - os.lstat(other.dir).st_mtime > _QUIET_SECONDS
                if quiet and other.job != store.job and other.sequence_numbers():
                    found.append(other)
    except OSError as error:
        raise StoreError(f"store directory {user} cannot be searched: {error.strerror or error}") from error
    return found


def _forget(store: JobStore, record_days: int, now: float) -> list[int]:
    user = store.dir.parent
    gone: list[int] = []
    failures: list[str] = []
    try:
        names = sorted(filter(_JOB.fullmatch, os.listdir(user))) if _is_due(user / _SWEPT, now) else []
    except OSError as error:
        raise StoreError(f"store directory {user} cannot be searched: {error.strerror or error}") from error
    for name in names:
        try:
            if name.endswith(DELETED_SUFFIX):
                remove_tree(user / name)
            elif int(name) != store.job.job_id and _is_forgettable(_sibling(store, int(name)), record_days, now):
                deleted = user / f"{name}{DELETED_SUFFIX}"
                remove_tree(deleted)
                os.rename(user / name, deleted)
                gone.append(int(name))
                remove_tree(deleted)
        except (FileNotFoundError, ValueError):
            continue  # gone meanwhile, or a name that is no job's
        except OSError as error:
            failures.append(f"{error.filename or name}: {error.strerror or error}")
        except StoreError as error:
            failures.append(str(error))
    if failures:
        raise StoreError(f"{len(failures)} of the old records in {user} cannot be removed: {failures[0]}")
    return sorted(gone)


def _sibling(store: JobStore, job_id: int) -> JobStore:
    return JobStore(store.root, dataclasses.replace(store.job, job_id=job_id))


def _is_due(marker: Path, now: float) -> bool:
    """Whether nobody has looked for a day; marks that somebody does now."""
    with contextlib.suppress(FileNotFoundError):
        if abs(now - os.lstat(marker).st_mtime) < _SWEEP_SECONDS:
            return False
    replace(marker, b"")
    return True


def _is_forgettable(store: JobStore, record_days: int, now: float) -> bool:
    """Whether nothing of use is in the job's directory. Every change in it shows in the directory's own time."""
    status = os.lstat(store.dir)
    age = (now - status.st_mtime) / _DAY
    if age <= record_days or not stat.S_ISDIR(status.st_mode) or store.sequence_numbers():
        return False
    attempts = read_record(store).attempts
    ended = bool(attempts) and attempts[-1].ended is not None
    return ended or age > _LOST_DAYS
