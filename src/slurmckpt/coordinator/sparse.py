"""Regular files with holes in a tar archive: in GNU's pax format 1.0 for them, which tarfile and GNU tar read.

Segments of shared memory are often much larger than what was ever written to them.
"""

from __future__ import annotations

import errno
import os
import tarfile
from collections.abc import Sequence

# A smaller hole is not worth a second header.
_WORTH = 64 * 1024
_BLOCK = tarfile.BLOCKSIZE


def data_of(descriptor: int, size: int) -> list[tuple[int, int]]:
    """Where there is data in the first `size` bytes of a file: offset and length each. Raises OSError.

    The whole file, where its file system knows nothing of holes.
    """
    found: list[tuple[int, int]] = []
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # nothing but a hole is left
            if error.errno == errno.EINVAL:
                return [(0, size)]
            raise
        if start >= size:
            break
        end = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
        found.append((start, end - start))
    return found


def is_worth_it(data: Sequence[tuple[int, int]], size: int) -> bool:
    """Whether the holes are large enough to be left out."""
    return size - sum(length for _, length in data) >= _WORTH


def add(tar: tarfile.TarFile, member: tarfile.TarInfo, descriptor: int, data: Sequence[tuple[int, int]]) -> None:
    """Add a file of which only `data` is stored. member: as for a whole one, with its size. Raises OSError."""
    member.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": str(member.size),
    }
    # The last entry is the end, where the file ends with a hole.
    entries = [*data, (member.size, 0)]
    numbers = [len(entries), *(number for entry in entries for number in entry)]
    table = "".join(f"{number}\n" for number in numbers).encode("ascii")
    table += bytes(-len(table) % _BLOCK)
    member.size = len(table) + sum(length for _, length in data)
    tar.addfile(member, _Stored(table, descriptor, data))


class _Stored:
    """Reads the table and then the data, as if they were one file."""

    def __init__(self, table: bytes, descriptor: int, data: Sequence[tuple[int, int]]) -> None:
        self._table = table
        self._descriptor = descriptor
        self._left = list(reversed(data))

    def read(self, size: int = -1) -> bytes:
        """As much as `size` bytes; tarfile takes less for the end of the file."""
        chunk, self._table = self._table[:size], self._table[size:]
        while len(chunk) < size and self._left:
            offset, length = self._left.pop()
            piece = os.pread(self._descriptor, min(length, size - len(chunk)), offset)
            if not piece:
                break  # it has become shorter
            chunk += piece
            if len(piece) < length:
                self._left.append((offset + len(piece), length - len(piece)))
        return chunk
