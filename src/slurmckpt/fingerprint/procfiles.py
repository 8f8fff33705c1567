"""Files that processes have mapped or open, read without trusting those processes.

A user decides what is mapped, what it is called, and what stands under that name a moment later. So: regular files only
and nothing else even opened, and no files whose content a user's program makes up (FUSE). Callers run this in the
thread that has the user's file-system identity, beside the event loop: storage can hang.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_MAX_LINES = 200_000  # of a mountinfo file


@dataclass(frozen=True)
class ProcessFile:
    """A file that a process uses. path: its name as that process sees it.

    executable: whether it is mapped so. root: where that process's root directory is seen from here. places: where to
    open the file, best first.
    """

    path: str
    inode: int
    executable: bool
    root: Path
    places: tuple[Path, ...]


@contextlib.contextmanager
def open_regular(places: Iterable[Path], inode: int | None = None) -> Iterator[int]:
    """A descriptor for the first of `places` that is a regular file, with this inode number if one is given.

    Raises OSError when none is. What is not a regular file is not opened: that may block, or rewind a tape.
    """
    reason: OSError = FileNotFoundError("no such regular file")
    for place in places:
        try:
            descriptor = _open_if_regular(place, inode)
        except OSError as error:
            reason = error
            continue
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        return
    raise reason


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """`size` bytes at `offset`, fewer only at the end of the file."""
    parts: list[bytes] = []
    while size > 0 and (part := os.pread(descriptor, size, offset)):
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return b"".join(parts)


def on_fuse(path: str, mountinfo: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether `path` lies on a FUSE file system, found out without touching it."""
    longest, fuse = "", False
    for point, _, kind in _mounts(mountinfo):
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # A later mount covers an earlier one at the same place.
        if inside and len(point) >= len(longest):
            longest, fuse = point, kind
    return fuse


def _open_if_regular(place: Path, inode: int | None) -> int:
    handle = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or inode not in (None, found.st_ino):
            raise FileNotFoundError(f"{place} is not the regular file that was meant")
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def _mounts(mountinfo: Path) -> Iterator[tuple[str, str, bool]]:
    """Mount point, device ("major:minor", decimal) and whether it is FUSE, of each line of a mountinfo file."""
    for line in _lines(mountinfo):
        fields, _, rest = line.partition(" - ")
        kind = rest.partition(" ")[0]
        words = fields.split(" ")
        if len(words) >= 5:
            yield _unescape(words[4]), words[2], kind == "fuse" or kind.startswith("fuse.")


def _lines(path: Path) -> Iterator[str]:
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        for number, line in enumerate(stream):
            if number >= _MAX_LINES:
                return
            yield line.rstrip("\n")


def _unescape(text: str) -> str:
    r"""The kernel writes \012 for a newline in a name, and in mountinfo also spaces and backslashes like that."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
