"""A file of a pod, opened without following anything, and as the manifest notes it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from slurmckpt.coordinator.files.rules import Treatment
from slurmckpt.store.manifest import OpenFile


@contextlib.contextmanager
def opened(root: int, path: str, flags: int) -> Iterator[int]:
    """A descriptor of the file at `path`, below the descriptor `root`. Raises OSError."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path.lstrip("/"), flags, dir_fd=root)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def record(
    path: str, status: os.stat_result, treatment: Treatment, place: int | None = None, sample: str = ""
) -> OpenFile:
    """What the manifest says of a file that looks like this. place: of its content; sample: of what is not saved."""
    return OpenFile(
        path=path,
        size=status.st_size,
        mode=stat.S_IMODE(status.st_mode),
        inode=str(status.st_ino),
        policy=treatment,
        modified=status.st_mtime_ns,
        owner=status.st_uid,
        group=status.st_gid,
        content=place,
        sample=sample,
    )
