"""Operations on files in a tree whose owner may have planted links and pipes. Run them in the owner's thread."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from io import FileIO
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"

_REMOVE_ATTEMPTS = 10


def open_regular(base: Path, relative: str) -> FileIO:
    """The regular file `relative` below `base`, open for reading; no part of the path from `base` on may be a link.

    Never blocks on a FIFO and never opens a device for real. Raises OSError; for another kind of file with EINVAL.
    """
    *directories, name = relative.split("/")
    directory = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for part in directories:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            os.close(directory)
            directory = below
        descriptor = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=directory
        )
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", relative)
    return FileIO(descriptor, "rb")


def read_small(base: Path, relative: str, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises OSError; EFBIG when it is larger."""
    with open_regular(base, relative) as file:
        data = bytearray()
        while len(data) <= limit:
            chunk = file.read(min(2**20, limit + 1 - len(data)))
            if not chunk:
                return bytes(data)
            data += chunk
    raise OSError(errno.EFBIG, f"larger than {limit} bytes", relative)


def create(path: str | Path, directory: int | None = None, mode: int = 0o600) -> FileIO:
    """A new file, open for writing; an existing one, or a link in its place, is an error. The umask does not count."""
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory
    )
    os.fchmod(descriptor, mode)
    return FileIO(descriptor, "wb")


def make_directory(path: str | Path, directory: int | None = None, mode: int = 0o700) -> None:
    """A new directory; something there already is an error. The umask does not count."""
    os.mkdir(path, mode, dir_fd=directory)
    os.chmod(path, mode, dir_fd=directory)


def write_all(file: FileIO, data: bytes) -> None:
    """Write all of `data`: one write(2) may take less, for instance when the disk is nearly full."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]


def replace(path: Path, data: bytes) -> None:
    """Put `data` at `path`; a reader, or a crash at any moment, sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    try:
        with create(temporary) as file:
            write_all(file, data)
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(path.parent)


def sync_directory(path: str | Path, directory: int | None = None) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Remove whatever is at `path`, links as links; nothing there is fine. Raises OSError."""
    for _ in range(_REMOVE_ATTEMPTS):
        try:
            if stat.S_ISDIR(os.lstat(path).st_mode):
                # On Linux rmtree works with descriptors and follows no link, whatever is swapped while it runs.
                shutil.rmtree(path)
            else:
                os.unlink(path)
        except FileNotFoundError:
            # Gone, or somebody else is removing the same tree: look again.
            if not os.path.lexists(path):
                return
        except RecursionError as error:
            raise OSError(errno.ENAMETOOLONG, "directories are nested too deep", str(path)) from error
    if os.path.lexists(path):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
