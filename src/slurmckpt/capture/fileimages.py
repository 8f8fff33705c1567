"""Gives a regular file another path in CRIU's image of open files.

CRIU opens regular files by the path that they had. Where a file lies elsewhere on the node of the restore, its path in
the image is changed: CRIU then opens it with the flags, at the position and with the size that it saw, as often as the
processes had opened it. A descriptor that CRIU inherits would be one open file with one position for all of them.
"""

from __future__ import annotations

import os
import struct
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
    path = directory / "files.img"
    data = path.read_bytes()
    if len(data) < _HEADER.size or _HEADER.unpack_from(data) != _MAGICS:
        raise ImageError("files.img is no image of open files")
    wanted, given = os.fsencode(old), os.fsencode(new)
    entries, found, offset = [data[: _HEADER.size]], 0, _HEADER.size
    while offset < len(data):
        message, offset = _entry(data, offset)
        try:
            entry = images.file_entry.FromString(message)
        except DecodeError as error:
            raise ImageError("files.img has an entry that cannot be read") from error
        if entry.HasField("reg") and entry.reg.name == wanted:
            entry.reg.name = given
            message = entry.SerializeToString()
            found += 1
        entries += [_SIZE.pack(len(message)), message]
    if found:
        changed = path.with_suffix(".new")
        changed.write_bytes(b"".join(entries))
        changed.replace(path)
    return found


def _entry(data: bytes, offset: int) -> tuple[bytes, int]:
    """The entry that begins at this offset, and the offset behind it."""
    start = offset + _SIZE.size
    if start <= len(data):
        end = start + _SIZE.unpack_from(data, offset)[0]
        if end <= len(data):
            return data[start:end], end
    raise ImageError("files.img is cut off")
