"""What doctor asks of an ELF file: is it a static program, and which value has a constant that it exports.

Layout: elf(5) and the System V ABI. Only 64-bit little-endian files, which those of the supported machines (x86_64,
aarch64) are. Nothing is loaded or run, all reads are bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurmckpt.fingerprint.procfiles import open_regular, read_at

_HEADER = struct.Struct("<4sBB26xQQ6xHHHH")  # magic, class, data, phoff, shoff, phentsize, phnum, shentsize, shnum
_SEGMENT = struct.Struct("<I4xQQ8xQ16x")  # type, offset, vaddr, filesz
_SECTION = struct.Struct("<4xI16xQQI12xQ")  # type, offset, size, link, entsize
_SYMBOL = struct.Struct("<I4xQ8x")  # name, value
_PT_LOAD, _PT_INTERP = 1, 3
_SHT_DYNSYM = 11
_MAX_TABLE = 1 << 20  # bytes of one table


class NotElf(ValueError):
    """The file is not a 64-bit little-endian ELF file, or is cut short."""


@dataclass(frozen=True)
class _Elf:
    """An open file; offset, entry size and count of its program and section headers."""

    descriptor: int
    segments: tuple[int, int, int]
    sections: tuple[int, int, int]


def is_static(path: Path) -> bool:
    """Whether the program at `path` needs no dynamic loader. Raises OSError, NotElf."""
    with open_regular([path]) as descriptor:
        return all(kind != _PT_INTERP for kind, *_ in _entries(descriptor, _read(descriptor).segments, _SEGMENT))


def constant(path: Path, name: str) -> int | None:
    """The value of the exported 32-bit constant `name` of a shared object; None when it has none.

    Raises OSError, NotElf.
    """
    with open_regular([path]) as descriptor:
        file = _read(descriptor)
        address = _address(file, name.encode("ascii"))
        if address is None:
            return None
        for kind, offset, start, size in _entries(descriptor, file.segments, _SEGMENT):
            if kind == _PT_LOAD and start <= address and address + 4 <= start + size:
                return int.from_bytes(_exactly(descriptor, 4, offset + address - start), "little")
        return None


def _address(file: _Elf, name: bytes) -> int | None:
    """The address of an exported symbol."""
    sections = list(_entries(file.descriptor, file.sections, _SECTION))
    for kind, offset, size, link, entry_size in sections:
        if kind != _SHT_DYNSYM or link >= len(sections):
            continue
        names = _exactly(file.descriptor, min(sections[link][2], _MAX_TABLE), sections[link][1])
        count = size // entry_size if entry_size else 0
        for start, value in _entries(file.descriptor, (offset, entry_size, count), _SYMBOL):
            # An address of 0: the symbol is wanted from elsewhere.
            if value and names[start : start + len(name) + 1] == name + b"\0":
                return int(value)
    return None


def _read(descriptor: int) -> _Elf:
    magic, width, order, segments, sections, segment_size, segment_count, section_size, section_count = _HEADER.unpack(
        _exactly(descriptor, _HEADER.size, 0)
    )
    if magic != b"\x7fELF" or width != 2 or order != 1:
        raise NotElf("not a 64-bit little-endian ELF file")
    return _Elf(descriptor, (segments, segment_size, segment_count), (sections, section_size, section_count))


def _entries(descriptor: int, table: tuple[int, int, int], entry: struct.Struct) -> Iterator[tuple[int, ...]]:
    offset, size, count = table
    if count and not entry.size <= size:
        raise NotElf("an entry of its headers is too small")
    data = _exactly(descriptor, min(size * count, _MAX_TABLE // size * size if size else 0), offset)
    for start in range(0, len(data), size or 1):
        yield entry.unpack_from(data, start)


def _exactly(descriptor: int, size: int, offset: int) -> bytes:
    try:
        data = read_at(descriptor, size, offset)
    except (OverflowError, OSError) as error:
        raise NotElf(f"its headers point outside: {error}") from error
    if len(data) != size:
        raise NotElf(f"cut short: {len(data)} of {size} bytes at {offset}")
    return data
