"""Changes what CRIU's image of open files says of a regular file: where it lies, or how large it is.

CRIU opens regular files by the path that they had. Where a file lies elsewhere on the node of the restore, its path in
the image is changed: CRIU then opens it with the flags, at the position and with the size that it saw, as often as the
processes had opened it. A descriptor that CRIU inherits would be one open file with one position for all of them.

CRIU refuses a file that has another size than it saw. One that may have any size gets none in the image.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from google.protobuf.message import DecodeError

from slurmckpt.capture import criu_files_pb2 as images

# A common magic and the image's own; then each entry after its size (CRIU's magic.h and protobuf.c).
_HEADER = struct.Struct("<II")
_SIZE = struct.Struct("<I")
_MAGICS = (0x54564319, 0x56303138)


class ImageError(ValueError):
    """Not an image of open files as this version of CRIU writes it."""


def rename(directory: Path, old: str, new: str) -> int:
    """Change the path `old` to `new`, both absolute, in the images in `directory`. Gives how many open files had it.

    Raises OSError or ImageError; the image is unchanged then.
    """
    return rename_all(directory, {old: new})


def rename_all(directory: Path, renamed: Mapping[str, str]) -> int:
    """As rename(), for old path -> new path."""
    given = {os.fsencode(old): os.fsencode(new) for old, new in renamed.items()}

    def change(entry: images.file_entry) -> bool:
        if not entry.HasField("reg") or entry.reg.name not in given:
            return False
        entry.reg.name = given[entry.reg.name]
        return True

    return rewrite(directory, change)


def forget_sizes(directory: Path, paths: Collection[str]) -> int:
    """Let CRIU accept files of any size under these paths. Gives how many open files had one. Raises as rename()."""
    wanted = {os.fsencode(path) for path in paths}

    def change(entry: images.file_entry) -> bool:
        if not entry.HasField("reg") or entry.reg.name not in wanted or not entry.reg.HasField("size"):
            return False
        entry.reg.ClearField("size")
        return True

    return rewrite(directory, change)


def paths(directory: Path) -> list[str]:
    """The paths of the regular files in the images in `directory`. Raises OSError or ImageError."""
    return [os.fsdecode(entry.reg.name) for entry, _ in _entries(directory / "files.img") if entry.HasField("reg")]


def rewrite(directory: Path, change: Callable[[images.file_entry], bool]) -> int:
    """Have `change` look at every entry of the images in `directory`; it says whether it has changed it.

    Gives how many were changed. Raises OSError or ImageError; the image is unchanged then.
    """
    path = directory / "files.img"
    parts, found = [_HEADER.pack(*_MAGICS)], 0
    for entry, raw in _entries(path):
        message = raw
        if change(entry):
            message = entry.SerializeToString()
            found += 1
        parts += [_SIZE.pack(len(message)), message]
    if found:
        changed = path.with_suffix(".new")
        changed.write_bytes(b"".join(parts))
        changed.replace(path)
    return found


def entries(directory: Path) -> Iterator[images.file_entry]:
    """All entries of the image in `directory`. Raises OSError or ImageError."""
    for entry, _ in _entries(directory / "files.img"):
        yield entry


def _entries(path: Path) -> Iterator[tuple[images.file_entry, bytes]]:
    """Each entry, and its bytes."""
    data = path.read_bytes()
    if len(data) < _HEADER.size or _HEADER.unpack_from(data) != _MAGICS:
        raise ImageError("files.img is no image of open files")
    offset = _HEADER.size
    while offset < len(data):
        message, offset = _entry(data, offset)
        try:
            entry = images.file_entry.FromString(message)
        except DecodeError as error:
            raise ImageError("files.img has an entry that cannot be read") from error
        yield entry, message


def _entry(data: bytes, offset: int) -> tuple[bytes, int]:
    """The entry that begins at this offset, and the offset behind it."""
    start = offset + _SIZE.size
    if start <= len(data):
        end = start + _SIZE.unpack_from(data, offset)[0]
        if end <= len(data):
            return data[start:end], end
    raise ImageError("files.img is cut off")
