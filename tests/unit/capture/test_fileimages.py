"""CRIU's image of open files: one path is changed, and everything else in it is kept."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from slurmckpt.capture import criu_files_pb2 as messages
from slurmckpt.capture.fileimages import ImageError, forget_sizes, rename

HEADER = struct.pack("<II", 0x54564319, 0x56303138)
OLD, NEW = "/var/spool/slurmd.n1/job00012/slurm_script", "/var/spool/slurmd.node-2/job00012/slurm_script"


def field(number: int, value: bytes | int) -> bytes:
    """One field below 16 of a protobuf message (protobuf.dev/programming-guides/encoding)."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


def regular(identity: int, name: bytes, position: int = 7) -> bytes:
    """A file_entry as CRIU 4.2 writes it: type 1 is a regular file."""
    reg = field(1, identity) + field(2, 0) + field(3, position) + field(5, b"") + field(6, name) + field(8, 100)
    return field(1, 1) + field(2, identity) + field(3, reg)


PIPE = field(1, 5) + field(2, 9) + field(11, b"\x08\x09")


def write(directory: Path, *entries: bytes) -> Path:
    path = directory / "files.img"
    path.write_bytes(HEADER + b"".join(struct.pack("<I", len(entry)) + entry for entry in entries))
    return path


def read(path: Path) -> list[bytes]:
    data, entries, offset = path.read_bytes(), [], len(HEADER)
    assert data.startswith(HEADER)
    while offset < len(data):
        (size,) = struct.unpack_from("<I", data, offset)
        entries.append(data[offset + 4 : offset + 4 + size])
        offset += 4 + size
    return entries


def fields(message: bytes) -> dict[int, object]:
    """Field number to value, for fields below 16."""
    found: dict[int, object] = {}
    while message:
        number, kind = message[0] >> 3, message[0] & 7
        size = 2 + message[1] if kind == 2 else 2
        found[number] = message[2:size] if kind == 2 else message[1]
        message = message[size:]
    return found


def test_every_open_file_of_that_path_and_nothing_else(tmp_path: Path) -> None:
    old = OLD.encode()
    entries = [regular(1, b"/other"), regular(2, old), PIPE, regular(3, old, 50), regular(4, b"/\xff")]
    path = write(tmp_path, *entries)
    assert rename(tmp_path, OLD, NEW) == 2
    found = read(path)
    assert [found[0], found[2], found[4]] == [entries[0], PIPE, entries[4]]
    for index, identity, position in ((1, 2, 7), (3, 3, 50)):
        outer = fields(found[index])
        inner = outer[3]
        assert isinstance(inner, bytes)
        assert (outer[1], outer[2]) == (1, identity)
        assert fields(inner) == {1: identity, 2: 0, 3: position, 5: b"", 6: NEW.encode(), 8: 100}
        assert messages.file_entry.FromString(found[index]).reg.name == NEW.encode()
    assert list(tmp_path.iterdir()) == [path]


def test_an_image_without_that_path_is_not_touched(tmp_path: Path) -> None:
    path = write(tmp_path, regular(1, (OLD + "x").encode()), PIPE)
    before = (path.stat().st_ino, path.read_bytes())
    assert rename(tmp_path, OLD, NEW) == 0
    assert (path.stat().st_ino, path.read_bytes()) == before


def test_a_file_that_may_have_any_size(tmp_path: Path) -> None:
    entries = [regular(1, b"/other"), regular(2, b"/kept"), PIPE, regular(3, b"/kept", 50)]
    path = write(tmp_path, *entries)
    assert forget_sizes(tmp_path, {"/kept", "/nobody has it"}) == 2
    found = read(path)
    assert [found[0], found[2]] == [entries[0], PIPE]
    for index, position in ((1, 7), (3, 50)):
        inner = fields(found[index])[3]
        assert isinstance(inner, bytes)
        assert fields(inner) == {1: index + (index == 1), 2: 0, 3: position, 5: b"", 6: b"/kept"}
    assert forget_sizes(tmp_path, {"/kept"}) == 0


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "is no image"),
        (HEADER[::-1], "is no image"),
        (HEADER + b"\1\0", "is cut off"),
        (HEADER + struct.pack("<I", 100) + PIPE, "is cut off"),
        (HEADER + struct.pack("<I", 2) + b"\x1a\x09", "cannot be read"),
    ],
)
def test_what_is_no_image_of_open_files(tmp_path: Path, data: bytes, complaint: str) -> None:
    path = tmp_path / "files.img"
    path.write_bytes(data)
    with pytest.raises(ImageError, match=complaint):
        rename(tmp_path, OLD, NEW)
    assert path.read_bytes() == data
