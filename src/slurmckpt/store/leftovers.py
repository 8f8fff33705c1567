"""Which jobs have anything in a store, as seen from outside of any job: for `slurmckpt prune`.

The tree is the users': below the directory of a user everything is done with that user's rights, and what does not look
as slurmckpt makes it is left out.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from slurmckpt.errors import StoreError
from slurmckpt.identity import JobIdentity
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import DELETED_SUFFIX, PARTIAL_SUFFIX, JobStore

_JOB = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)
# Slurm's own numbers end at 0x03ffffff (MAX_JOB_ID).
_NO_JOB = 2**32 - 2


@dataclass(frozen=True)
class Owner:
    """One user's directory in the store. uid, gid: its owner's. name: as the directory is called."""

    directory: Path
    name: str
    uid: int
    gid: int

    def files(self) -> UserFiles:
        """File access with the owner's identity. Raises StoreError when the caller may not act for that user."""
        groups = [self.gid]
        if os.geteuid() == 0 and self.uid != 0:
            with contextlib.suppress(KeyError):  # an account that is gone: what it owned it may still remove
                groups = os.getgrouplist(pwd.getpwuid(self.uid).pw_name, self.gid)
        return UserFiles.for_user(self.uid, self.gid, groups)


@dataclass(frozen=True)
class Leftover:
    """One job's directory. seqs: committed checkpoints. partials: unfinished ones. changed: seconds since 1970."""

    store: JobStore
    seqs: list[int]
    partials: list[int]
    changed: float


def owners(root: Path, cluster: str) -> list[Owner]:
    """The users with a directory in this cluster's part of the store; for all but root only the caller.

    Raises StoreError when it cannot be read. No such directory: nobody.
    """
    top = root / cluster
    found = []
    try:
        with os.scandir(top) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode) and os.geteuid() in (0, status.st_uid):
                    found.append(Owner(Path(entry.path), entry.name, status.st_uid, status.st_gid))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"store {top} cannot be read: {error.strerror}") from error
    return sorted(found, key=lambda owner: owner.name)


def of(owner: Owner, root: Path) -> list[Leftover]:
    """This owner's jobs that have left anything. To be called with the owner's rights.

    Raises StoreError when the directory cannot be read.
    """
    found = []
    for job_id in sorted(_numbers(owner.directory)):
        with contextlib.suppress(OSError, ValueError, StoreError):  # gone meanwhile, or no job's
            store = _store(owner, root, job_id)
            status = store.dir.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == owner.uid:
                partials = sorted({*store.numbers(PARTIAL_SUFFIX), *store.numbers(DELETED_SUFFIX)})
                seqs = store.sequence_numbers()
                if seqs or partials:
                    found.append(Leftover(store, seqs, partials, status.st_mtime))
    return found


def nobodys(owner: Owner, root: Path) -> JobStore:
    """The place of a job that there cannot be: for what is done for an owner and not for one of the jobs."""
    return _store(owner, root, _NO_JOB)


def _numbers(directory: Path) -> list[int]:
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries]
    except OSError as error:
        raise StoreError(f"store directory {directory} cannot be read: {error.strerror}") from error
    return [int(name) for name in names if _JOB.fullmatch(name)]


def _store(owner: Owner, root: Path, job_id: int) -> JobStore:
    return JobStore(root, JobIdentity(owner.directory.parent.name, owner.name, owner.uid, owner.gid, job_id))
