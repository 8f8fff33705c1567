"""Images of TCP connections as CRIU 4.2.1 writes them: what could be sent counts as sent, and nothing else changes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.capture.tcpimages import ImageError, silence

COMMON, TCP_STREAM = 0x54564319, 0x51465506


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def image(fields: dict[int, int], queues: bytes = b"received and to be sent") -> bytes:
    message = b"".join(varint(number << 3) + varint(value) for number, value in fields.items())
    return struct.pack("<III", COMMON, TCP_STREAM, len(message)) + message + queues


def parse(data: bytes) -> tuple[dict[int, int], bytes]:
    (size,) = struct.unpack_from("<I", data, 8)
    numbers, value, shift = [], 0, 0
    for byte in data[12 : 12 + size]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            numbers.append(value)
            value, shift = 0, 0
    return {tag >> 3: value for tag, value in zip(numbers[::2], numbers[1::2], strict=True)}, data[12 + size :]


@given(
    st.dictionaries(st.integers(1, 17), st.integers(0, 2**32 - 1)), st.integers(1, 2**32 - 1), st.binary(max_size=100)
)
def test_only_the_unsent_part_changes(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[int, int], unsent: int, queues: bytes
) -> None:
    path = tmp_path_factory.mktemp("images") / "tcp-stream-1f.img"
    # Without a window nobody knows how much could be.
    fields.pop(14, None)
    path.write_bytes(image(fields | {12: unsent}, queues))
    assert silence(path.parent) == 1
    assert parse(path.read_bytes()) == (fields | {12: 0}, queues)
    assert silence(path.parent) == 0


# queued, unsent, window, and what is left unsent
@pytest.mark.parametrize(
    "queued, unsent, window, left",
    [
        (2_800_000, 2_700_000, 100_000, 2_700_000),
        (2_800_000, 2_700_000, 100_001, 2_699_999),
        (2_800_000, 2_700_000, 0, 2_700_000),
        (2_800_000, 2_800_000, 65_536, 2_734_464),
        (300, 200, 100_000, 0),
        (300, 300, 299, 1),
    ],
)
def test_what_the_other_end_had_no_room_for_stays_unsent(
    tmp_path: Path, queued: int, unsent: int, window: int, left: int
) -> None:
    path = tmp_path / "tcp-stream-1.img"
    path.write_bytes(image({3: queued, 12: unsent, 14: window}))
    assert silence(tmp_path) == (left != unsent)
    assert parse(path.read_bytes()) == ({3: queued, 12: left, 14: window}, b"received and to be sent")


@pytest.mark.parametrize("fields", [{1: 5, 12: 0}, {1: 300, 2: 2**32 - 1}])
def test_nothing_unsent(tmp_path: Path, fields: dict[int, int]) -> None:
    path = tmp_path / "tcp-stream-a.img"
    path.write_bytes(image(fields))
    assert silence(tmp_path) == 0
    assert path.read_bytes() == image(fields)


def test_other_images_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "core-101.img").write_bytes(b"anything")
    assert silence(tmp_path) == 0
    assert (tmp_path / "core-101.img").read_bytes() == b"anything"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        image({12: 5})[:10],
        image({1: 5, 12: 5}, b"")[:-1],
        struct.pack("<III", COMMON, TCP_STREAM + 1, 2) + b"\x60\x05",
        struct.pack("<III", COMMON, TCP_STREAM, 3) + b"\x62\x01\x00",
        struct.pack("<III", COMMON, TCP_STREAM, 2) + b"\x60\x85",
        struct.pack("<III", COMMON, TCP_STREAM, 12) + b"\x60" + b"\x80" * 11,
    ],
)
def test_what_is_no_image_of_a_connection(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tcp-stream-1.img").write_bytes(data)
    with pytest.raises(ImageError, match=r"^tcp-stream-1\.img "):
        silence(tmp_path)
