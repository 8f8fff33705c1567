"""Build ids, from files that a linker wrote and from ones that nobody should."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.fingerprint.elf import build_id

ID = bytes(range(20))


def of(content: bytes) -> str | None:
    descriptor = os.memfd_create("elf")
    try:
        os.write(descriptor, content)
        return build_id(descriptor)
    finally:
        os.close(descriptor)


def note(name: bytes, kind: int, description: bytes, align: int = 4) -> bytes:
    def padded(data: bytes, before: int) -> bytes:
        return data + b"\0" * (-(before + len(data)) % align)

    return struct.pack("<III", len(name), len(description), kind) + padded(name, 12) + padded(description, 0)


def elf64(*segments: bytes, align: int = 4) -> bytes:
    """A little-endian 64-bit file with these note segments and nothing else."""
    table, offset = b"", 64 + 56 * len(segments)
    for segment in segments:
        table += struct.pack("<IIQQQQQQ", 4, 4, offset, 0, 0, len(segment), len(segment), align)
        offset += len(segment)
    ident = b"\x7fELF\2\1\1" + b"\0" * 9
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0)
    return header + table + b"".join(segments)


def elf32_big_endian(segment: bytes) -> bytes:
    ident = b"\x7fELF\1\2\1" + b"\0" * 9
    header = ident + struct.pack(">HHIIIIIHHHHHH", 3, 20, 1, 0, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    return header + struct.pack(">IIIIIIII", 4, 84, 0, 0, len(segment), len(segment), 4, 4) + segment


def test_the_linkers_build_id(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    file = tmp_path / "lib.so"
    compile_ = ["cc", "-shared", "-x", "c", "/dev/null", "-o", str(file)]
    subprocess.run([*compile_, "-Wl,--build-id=0x0123456789abcdef0123456789abcdef01234567"], check=True)
    assert of(file.read_bytes()) == "0123456789abcdef0123456789abcdef01234567"
    subprocess.run([*compile_, "-Wl,--build-id=none"], check=True)
    assert of(file.read_bytes()) is None


def test_the_right_note_among_others() -> None:
    segment = note(b"GNU\0", 1, b"abi") + note(b"Go\0\0", 3, b"x" * 9) + note(b"GNU\0", 3, ID)
    assert of(elf64(segment)) == ID.hex()
    assert of(elf64(note(b"stapsdt\0", 3, b""), segment)) == ID.hex()


def test_notes_aligned_to_eight() -> None:
    segment = note(b"GNU\0", 5, b"\1\2\3\4\5", align=8) + note(b"GNU\0", 3, ID, align=8)
    assert of(elf64(segment, align=8)) == ID.hex()


def test_the_other_class_and_byte_order() -> None:
    segment = struct.pack(">III", 4, 20, 3) + b"GNU\0" + ID
    assert of(elf32_big_endian(segment)) == ID.hex()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x7fELF",
        b"#!/bin/sh\n" * 50,
        elf64(),
        elf64(note(b"GNU\0", 3, b"")),
        elf64(note(b"GNU\0", 3, b"x" * 65)),
        elf64(note(b"GNU\0", 3, ID))[:-1],
        elf64(note(b"GNU\0", 3, ID)).replace(b"\x7fELF\2", b"\x7fELF\7"),
        # a segment far behind the end, and a note that claims four gigabytes
        elf64(note(b"GNU\0", 3, ID)).replace(struct.pack("<Q", 120), struct.pack("<Q", 2**64 - 8), 1),
        elf64(struct.pack("<III", 0xFFFFFFFF, 0xFFFFFFFF, 3) + b"GNU\0"),
    ],
)
def test_files_without_a_build_id(content: bytes) -> None:
    assert of(content) is None


@given(st.binary(max_size=300), st.integers(0, 170), st.booleans())
def test_no_file_breaks_it(noise: bytes, position: int, cut: bool) -> None:
    good = elf64(note(b"GNU\0", 3, ID))
    of(good[:position] + noise + (b"" if cut else good[position + len(noise) :]))
