"""How the bytes of a job's file get into a checkpoint, and back into the file."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable

from blake3 import blake3

from slurmckpt.store.identity import beat

_CHUNK = 4 << 20
# What is read of a file for a sample: its ends, and pieces between.
_SAMPLE_END = 16 << 10
_SAMPLE = 4 << 10
_SAMPLES = 16
# FICLONE in uapi/linux/fs.h: _IOW(0x94, 9, int)
_FICLONE = 0x40049409


def clone(source: int, directory: str, root: int) -> int | None:
    """A nameless file that shares the blocks of `source`, open for reading; None where the file system cannot.

    directory: where the file lies, below the descriptor `root`. To be closed by the caller. It takes no time, but what
    has been written to the file and has not reached its disk yet is written first.
    """
    try:
        target = os.open(directory or ".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=root)
    except OSError:
        return None
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        os.close(target)
        return None
    return target


def copy(source: int, target: int, offset: int, size: int, go_on: Callable[[], None]) -> None:
    """Copy the first `size` bytes of `source` to `target`, from its byte `offset` on. Holes stay holes.

    go_on: called for each piece; what it raises ends the copy. Raises OSError, EIO when the file is shorter.
    """
    position = 0
    while position < size:
        go_on()
        beat()
        start, end = _data(source, position, size)
        os.lseek(target, offset + start, os.SEEK_SET)
        while start < end:
            moved = os.sendfile(target, source, start, min(end - start, _CHUNK))
            if not moved:
                raise OSError(errno.EIO, f"it became shorter than {size} bytes")
            start += moved
            go_on()
            beat()
        position = end


def write_back(source: int, offset: int, size: int, target: int) -> bool:
    """Make the content of `target`, open for reading and writing, that of `source` from its byte `offset` on.

    Only what differs is written. Gives whether anything did. Raises OSError.
    """
    changed, position, length = False, 0, os.fstat(target).st_size
    if length > size:
        os.ftruncate(target, size)
        changed = True
    while position < size:
        beat()
        wanted = _read(source, min(_CHUNK, size - position), offset + position)
        found = _read(target, len(wanted), position)
        # What is missing at the end reads as zeros once the file has its size.
        if found.ljust(len(wanted), b"\0") != wanted:
            _write(target, wanted, position)
            changed = True
        position += len(wanted)
    if length < size:
        os.ftruncate(target, size)
        changed = True
    return changed


def is_same(source: int, offset: int, size: int, target: int) -> bool:
    """Whether `target`, open for reading, has that content. Raises OSError."""
    if os.fstat(target).st_size != size:
        return False
    position = 0
    while position < size:
        beat()
        wanted = _read(source, min(_CHUNK, size - position), offset + position)
        if _read(target, len(wanted), position) != wanted:
            return False
        position += len(wanted)
    return True


def sample(source: int, size: int) -> str:
    """A short hash of the first `size` bytes of `source`, open for reading: of both ends, and of places between.

    What a program writes at other places than the end of its file is hardly missed by it, and a file that was written
    anew never. Raises OSError.
    """
    digest = blake3(size.to_bytes(8, "little"))
    last = max(0, size - _SAMPLE_END)
    digest.update(_read(source, min(_SAMPLE_END, size), 0))
    for index in range(1, _SAMPLES + 1):
        place = last * index // _SAMPLES
        digest.update(_read(source, min(_SAMPLE if index < _SAMPLES else _SAMPLE_END, size - place), place))
    return digest.hexdigest(8)


def _data(source: int, position: int, size: int) -> tuple[int, int]:
    """The next stretch of data from `position` on; an empty one at the end."""
    try:
        start = min(os.lseek(source, position, os.SEEK_DATA), size)
    except OSError as error:
        if error.errno == errno.ENXIO:
            if os.fstat(source).st_size < size:
                raise OSError(errno.EIO, f"it became shorter than {size} bytes") from error
            return size, size
        return position, size  # a file system that knows no holes
    end = size
    with contextlib.suppress(OSError):
        end = min(os.lseek(source, start, os.SEEK_HOLE), size)
    return start, end


def _read(descriptor: int, length: int, position: int) -> bytes:
    """That many bytes from there, or fewer at the end of the file."""
    pieces = []
    while length and (piece := os.pread(descriptor, length, position)):
        pieces.append(piece)
        length -= len(piece)
        position += len(piece)
    return b"".join(pieces)


def _write(descriptor: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view = view[written:]
        position += written
