"""The build id of an ELF file: the note NT_GNU_BUILD_ID, which the linker writes and every rebuild changes.

Layout: elf(5), and "Note Section" of the generic System V ABI. Reads are bounded, so any file may be offered.
"""

from __future__ import annotations

import struct

from slurmckpt.fingerprint.procfiles import read_at

_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3
_MAX_HEADERS = 256
_MAX_NOTES = 1 << 16  # bytes of one note segment
_MAX_ID = 64  # bytes; usual are 16 (md5, uuid) and 20 (sha1)


def build_id(descriptor: int) -> str | None:
    """The build id as lower-case hex; None when the file is no ELF file or has none. Raises OSError."""
    ident = read_at(descriptor, 16, 0)
    if len(ident) < 16 or ident[:4] != b"\x7fELF" or ident[4] not in (1, 2) or ident[5] not in (1, 2):
        return None
    order = "<" if ident[5] == 1 else ">"
    try:
        for offset, size, alignment in _note_segments(descriptor, order, wide=ident[4] == 2):
            found = _find_id(read_at(descriptor, min(size, _MAX_NOTES), offset), order, alignment)
            if found:
                return found.hex()
    except (struct.error, OverflowError):
        pass  # cut short, or headers that point nowhere
    return None


def _note_segments(descriptor: int, order: str, wide: bool) -> list[tuple[int, int, int]]:
    """Offset, size and alignment of each PT_NOTE segment."""
    if wide:
        table, entry_size, count = struct.unpack(f"{order}32xQ14xHH", _exactly(descriptor, 58, 0))
        entry = struct.Struct(f"{order}I4xQ16xQ8xQ")
    else:
        table, entry_size, count = struct.unpack(f"{order}28xI10xHH", _exactly(descriptor, 46, 0))
        entry = struct.Struct(f"{order}II8xI8xI")
    if entry_size < entry.size:
        return []
    headers = read_at(descriptor, entry_size * min(count, _MAX_HEADERS), table)
    found = [entry.unpack_from(headers, start) for start in range(0, len(headers) - entry.size + 1, entry_size)]
    return [(offset, size, alignment) for kind, offset, size, alignment in found if kind == _PT_NOTE]


def _find_id(notes: bytes, order: str, alignment: int) -> bytes | None:
    step = 8 if alignment == 8 else 4
    position = 0
    while position + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from(f"{order}III", notes, position)
        name_end = position + 12 + name_size
        start = _round_up(name_end, step)
        if kind == _NT_GNU_BUILD_ID and notes[position + 12 : name_end] == b"GNU\0":
            found = notes[start : start + size]
            return found if 0 < size <= _MAX_ID and len(found) == size else None
        position = _round_up(start + size, step)
    return None


def _round_up(value: int, step: int) -> int:
    return (value + step - 1) // step * step


def _exactly(descriptor: int, size: int, offset: int) -> bytes:
    data = read_at(descriptor, size, offset)
    if len(data) != size:
        raise struct.error("cut short")
    return data
