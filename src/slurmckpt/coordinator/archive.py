"""A directory with everything in it as a tar archive, read by descriptors while others may change it.

Links are never followed, and pipes never opened. What somebody removes meanwhile is left out. Unix sockets and devices
are left out, too.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator

from slurmckpt.coordinator import sparse

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: what has become a FIFO since it was looked at must not hold us up.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextlib.contextmanager
def written_to(target: int) -> Iterator[tarfile.TarFile]:
    """An archive that goes to this descriptor, which stays the caller's. Raises OSError."""
    with (
        open(target, "wb", closefd=False) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        yield tar


def add_all(tar: tarfile.TarFile, directory: int, go_on: Callable[[int], None] = lambda size: None) -> None:
    """Add the content of the directory behind this descriptor.

    go_on: called for each file with the bytes that it takes; what it raises ends it. Raises OSError, RecursionError.
    """
    Adding(tar, go_on).content(directory)


def is_safe(member: tarfile.TarInfo) -> bool:
    """Whether it is of a kind that add_all() writes, and stays below the directory that it is extracted to."""
    kind = member.isreg() or member.isdir() or member.issym() or member.isfifo() or member.islnk()
    names = [member.name, member.linkname] if member.islnk() else [member.name]
    return kind and not any(name.startswith("/") or ".." in name.split("/") for name in names)


class Adding:
    """Adds directories to one archive; a file that has several names in them is stored once. go_on: as in add_all()."""

    def __init__(self, tar: tarfile.TarFile, go_on: Callable[[int], None] = lambda size: None) -> None:
        self._tar = tar
        self._go_on = go_on
        # Files with more than one name, by device and inode.
        self._seen: dict[tuple[int, int], str] = {}

    def content(self, directory: int, prefix: str = "", wanted: Callable[[str], bool] = lambda name: True) -> None:
        """Add what the directory behind this descriptor holds under a `wanted` name. Raises OSError, RecursionError."""
        for name in filter(wanted, sorted(os.listdir(directory))):
            # What somebody else removes while we look was not the captured ranks' to keep.
            with contextlib.suppress(FileNotFoundError):
                mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                    descriptor = os.open(name, DIRECTORY if stat.S_ISDIR(mode) else _FILE, dir_fd=directory)
                    try:
                        self._open(descriptor, prefix + name)
                    finally:
                        os.close(descriptor)
                elif stat.S_ISLNK(mode) or stat.S_ISFIFO(mode):
                    member = _member(prefix + name, os.stat(name, dir_fd=directory, follow_symlinks=False))
                    member.type = tarfile.FIFOTYPE
                    if stat.S_ISLNK(mode):
                        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=directory)
                    self._tar.addfile(member)

    def _open(self, descriptor: int, path: str) -> None:
        status = os.fstat(descriptor)
        member = _member(path, status)
        if stat.S_ISDIR(status.st_mode):
            member.type = tarfile.DIRTYPE
            self._tar.addfile(member)
            self.content(descriptor, path + "/")
        elif stat.S_ISREG(status.st_mode):
            first = self._seen.setdefault((status.st_dev, status.st_ino), path)
            if first != path:
                member.type, member.linkname = tarfile.LNKTYPE, first
                self._tar.addfile(member)
            else:
                member.size = status.st_size
                data = sparse.data_of(descriptor, member.size)
                self._go_on(sum(length for _, length in data))
                if sparse.is_worth_it(data, member.size):
                    sparse.add(self._tar, member, descriptor, data)
                    return
                os.lseek(descriptor, 0, os.SEEK_SET)
                with open(descriptor, "rb", closefd=False) as content:
                    self._tar.addfile(member, content)


def _member(path: str, status: os.stat_result) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.mode, member.uid, member.gid = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
    member.mtime = status.st_mtime
    return member
