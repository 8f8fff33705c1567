"""The lease: which incarnation of a job may publish.

Each incarnation takes the next epoch. The claim is an empty file `.epoch-<n>`, created exclusively: that is atomic on
every file system, needs no lock that a dead node could keep, and is answered by the server where a network file system
would answer reads from its cache. lease.json says the same for people, with node and time. The higher of both counts,
so the order in which two incarnations write lease.json does not matter.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import time

from slurmckpt import faults
from slurmckpt.errors import Refused, StoreError
from slurmckpt.store.fields import parse_object
from slurmckpt.store.files import TEMPORARY_SUFFIX, create, make_directory, read_small, replace
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore
from slurmckpt.store.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES
from slurmckpt.store.record import read as read_record

LEASE_FORMAT = 1
MAX_LEASE_BYTES = 64 * 2**10
MAX_EPOCH = 2**53  # beyond it not every JSON reader is exact

_CLAIM = re.compile(r"\.epoch-([1-9][0-9]{0,15})", re.ASCII)
_CLAIM_ATTEMPTS = 1000
# What the owner of the directory can put in the place of a file: not a file, a link, too large, a directory.
_NOT_A_LEASE = frozenset({errno.EINVAL, errno.ELOOP, errno.EFBIG, errno.EISDIR, errno.ENXIO, errno.EACCES})


class LeaseLost(StoreError):
    """A newer incarnation of the job exists: this node was given up for dead and must publish nothing."""


class DirectoryGone(StoreError):
    """The job's directory was removed from the store, and the lease with it: nothing there tells who may publish."""


async def take(store: JobStore, files: UserFiles, node: str, least: int = 1) -> int:
    """Take the lease for a new incarnation on `node`; gives its epoch, higher than every one before.

    least: the epoch is no lower. By Slurm's count of requeues it is higher than that of the incarnation before even
    where the job's directory was removed, or an earlier incarnation could not take the lease.
    Raises StoreError with one line when the store cannot be read or written.
    """
    return await files.run(_guarded_take, store, node, least)


async def renew(store: JobStore, files: UserFiles, node: str, epoch: int) -> None:
    """After DirectoryGone: make the job's directory anew, with the claim of `epoch` in it.

    Only that directory: where those above it are gone, too, the store itself is not there, and something else may lie
    in its place. Raises LeaseLost when a newer incarnation runs, StoreError when it cannot be made.
    """
    await files.run(_guarded_renew, store, node, epoch)
    await check(store, files, epoch)


async def current(store: JobStore, files: UserFiles) -> int:
    """The newest epoch; 0 when the lease was never taken. Raises StoreError when that cannot be told."""
    return await files.run(_guarded_current, store)


async def check(store: JobStore, files: UserFiles, epoch: int) -> None:
    """Return when no newer incarnation than `epoch` exists; raises LeaseLost when one does, StoreError when unknown."""
    newest = await files.run(_guarded_current, store)
    if newest > epoch:
        raise LeaseLost(
            f"job {store.job.job_id} has a newer incarnation (epoch {newest}); this one (epoch {epoch}) may not publish"
        )


async def check_claim(store: JobStore, files: UserFiles, epoch: int) -> None:
    """check(), by opening one file as long as the claim of `epoch` is there: for a look that is taken again and again.

    The claim goes when a newer incarnation takes the lease. Opened, not only looked at: an NFS client asks the server
    at each open (nfs(5), close-to-open cache consistency), and may answer stat(2) from its cache.
    """
    if not await files.run(_has_claim, store, epoch):
        await check(store, files, epoch)


def _has_claim(store: JobStore, epoch: int) -> bool:
    try:
        os.close(os.open(store.dir / f".epoch-{epoch}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.ESTALE:
            return False
        raise StoreError(f"lease {store.lease} cannot be read: {error.strerror or error}") from error
    return True


def _guarded_take(store: JobStore, node: str, least: int) -> int:
    try:
        faults.at("open.lease")
        return _take(store, node, least)
    except OSError as error:
        raise StoreError(f"lease {store.lease} cannot be taken: {error.strerror or error}") from error


def _guarded_renew(store: JobStore, node: str, epoch: int) -> None:
    try:
        # A newer incarnation may be making both, too: then check() finds its claim.
        with contextlib.suppress(FileExistsError):
            make_directory(store.dir)
        with contextlib.suppress(FileExistsError):
            create(store.dir / f".epoch-{epoch}").close()
        if _claimed(store) == epoch:
            _note(store, node, epoch)
    except OSError as error:
        raise StoreError(f"store directory {store.dir} cannot be made anew: {error.strerror or error}") from error


def _guarded_current(store: JobStore) -> int:
    try:
        _refresh(store)
        return max(_lease_epoch(store) or 0, _claimed(store))
    except FileNotFoundError as error:
        raise DirectoryGone(f"store directory {store.dir} was removed") from error
    except OSError as error:
        raise StoreError(f"lease {store.lease} cannot be read: {error.strerror or error}") from error


def _take(store: JobStore, node: str, least: int) -> int:
    _refresh(store)
    written = _lease_epoch(store)
    before = max(written if written is not None else _traces(store), _claimed(store))
    epoch = _claim(store, max(before, least - 1))
    _note(store, node, epoch)
    for name in os.listdir(store.dir):
        match = _CLAIM.fullmatch(name)
        if match and int(match[1]) < epoch:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(store.dir / name)
    return epoch


def _note(store: JobStore, node: str, epoch: int) -> None:
    lease = {"format": LEASE_FORMAT, "epoch": epoch, "node": node, "time": time.time()}
    replace(store.lease, (json.dumps(lease) + "\n").encode("ascii"))


def _claim(store: JobStore, newest: int) -> int:
    """Claim an epoch above `newest` that nobody has had.

    Older claims are removed, so one that is free may have been taken before; but the highest claim is never removed, so
    whoever sees none above the own after making it is the only one to have it.
    """
    for _ in range(_CLAIM_ATTEMPTS):
        epoch = newest + 1
        if epoch > MAX_EPOCH:
            break
        claim = store.dir / f".epoch-{epoch}"
        try:
            create(claim).close()
        except FileExistsError:
            newest = epoch
            continue
        newest = max(_claimed(store), _lease_epoch(store) or 0)
        if newest <= epoch:
            return epoch
        with contextlib.suppress(FileNotFoundError):
            os.unlink(claim)
    raise StoreError(f"lease {store.lease} cannot be taken: no free epoch after {newest}")


def _claimed(store: JobStore) -> int:
    """The highest epoch with a claim; 0 when there is none."""
    matches = map(_CLAIM.fullmatch, os.listdir(store.dir))
    return max((int(match[1]) for match in matches if match and int(match[1]) <= MAX_EPOCH), default=0)


def _lease_epoch(store: JobStore) -> int | None:
    """The epoch in lease.json; None when there is no such file or it makes no sense."""
    try:
        lease = parse_object("lease", read_small(store.dir, store.lease.name, MAX_LEASE_BYTES))
    except (FileNotFoundError, Refused):
        return None
    except OSError as error:
        if error.errno in _NOT_A_LEASE:
            return None
        raise
    return _epoch(lease)


def _traces(store: JobStore) -> int:
    """The highest epoch that manifests and record speak of, for a lease that was lost. Not verified: it only counts."""
    epochs = [attempt.epoch for attempt in read_record(store).attempts if attempt.epoch <= MAX_EPOCH]
    for seq in store.sequence_numbers():
        with contextlib.suppress(OSError, Refused):
            data = read_small(store.checkpoint(seq), MANIFEST_NAME, MAX_MANIFEST_BYTES)
            epochs.append(_epoch(parse_object("manifest", data)) or 0)
    return max(epochs, default=0)


def _epoch(values: dict[str, object]) -> int | None:
    epoch = values.get("epoch")
    return epoch if type(epoch) is int and 0 <= epoch <= MAX_EPOCH else None


def _refresh(store: JobStore) -> None:
    """Change the directory, so that an NFS client drops what it has cached of it and the reads after this are fresh."""
    probe = store.dir / f".probe.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    create(probe).close()
    os.unlink(probe)
