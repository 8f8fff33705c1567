"""Timer descriptors in CRIU's image: those that CRIU would lose, or let expire at the wrong time, are changed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from slurmckpt.capture import criu_files_pb2 as files
from slurmckpt.capture import timerfds
from tests.unit.capture.test_fileimages import HEADER, field, read, write

ABSOLUTE, CANCEL = 1, 2
SECOND = 1_000_000_000


def varint(number: int, value: int) -> bytes:
    out = bytes([number << 3])
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def timer(clock: int, flags: int, left: int, period: int = 0, ticks: int = 0) -> bytes:
    """A file_entry as CRIU 4.2 writes it: type 17 is a timer. left, period: nanoseconds."""
    tfd = field(1, 9) + field(2, 2) + field(3, b"\x08\x00") + field(4, clock) + field(5, ticks) + field(6, flags)
    tfd += (
        varint(7, left // SECOND) + varint(8, left % SECOND) + varint(9, period // SECOND) + varint(10, period % SECOND)
    )
    return field(1, 17) + field(2, 9) + field(12, tfd)


def adjusted(images: Path, before: bytes, passed: float = 0) -> tuple[int, float]:
    """The flags, and the seconds that are left, after it."""
    write(images, before)
    (images / timerfds.FILE).write_text(json.dumps({"taken": time.time_ns() - int(passed * SECOND)}))
    timerfds.adjust(images)
    (entry,) = read(images / "files.img")
    tfd = files.file_entry.FromString(entry).tfd
    assert field(1, 17) in entry and field(2, 9) in entry and field(3, b"\x08\x00") in entry, "the rest of it is kept"
    return tfd.settime_flags, tfd.vsec + tfd.vnsec / SECOND


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        (timer(time.CLOCK_MONOTONIC, 0, 5 * SECOND), (0, 5.0)),
        (timer(time.CLOCK_MONOTONIC, ABSOLUTE, 5 * SECOND + SECOND // 2), (0, 5.5)),
        (timer(time.CLOCK_MONOTONIC, 0, 0), (0, 0.0)),
        (timer(time.CLOCK_MONOTONIC, ABSOLUTE, 0), (0, 0.0)),
        (timer(time.CLOCK_REALTIME, ABSOLUTE | CANCEL, 0), (CANCEL, 0.0)),
        (timer(time.CLOCK_MONOTONIC, 0, 0, SECOND // 10, ticks=1), (0, 1e-9)),
        (timer(time.CLOCK_MONOTONIC, ABSOLUTE, 0, SECOND // 10), (0, 1e-9)),
        (timer(time.CLOCK_REALTIME, 0, 5 * SECOND), (0, 5.0)),
    ],
    ids=[
        "relative",
        "absolute",
        "off",
        "expired",
        "of the day, expired",
        "unread",
        "unread, absolute",
        "day, relative",
    ],
)
def test_what_is_left(tmp_path: Path, before: bytes, wanted: tuple[int, float]) -> None:
    assert adjusted(tmp_path, before, passed=100) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("now", [1_796_000_000 * SECOND, 1_796_000_000 * SECOND + SECOND * 7 // 8])
@pytest.mark.parametrize("passed", [0, 3.25, 3600])
def test_an_end_in_the_time_of_day_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: int, passed: float
) -> None:
    """CRIU adds the whole seconds of the time of its restore."""
    monkeypatch.setattr(time, "time_ns", lambda: now)
    flags, left = adjusted(tmp_path, timer(time.CLOCK_REALTIME, ABSOLUTE | CANCEL, 100 * SECOND + SECOND // 2), passed)
    assert flags == ABSOLUTE | CANCEL
    set_to = now // SECOND + left
    if passed < 100:
        assert set_to == now / SECOND - passed + 100.5
    else:
        assert 0 <= set_to - now // SECOND < 1


def test_it_is_done_once(tmp_path: Path) -> None:
    adjusted(tmp_path, timer(time.CLOCK_REALTIME, ABSOLUTE, 100 * SECOND), 5)
    before = (tmp_path / "files.img").read_bytes()
    timerfds.adjust(tmp_path)
    assert (tmp_path / "files.img").read_bytes() == before


def test_the_time_is_noted(tmp_path: Path) -> None:
    (tmp_path / "files.img").write_bytes(HEADER)
    timerfds.save(tmp_path)
    assert abs(json.loads((tmp_path / timerfds.FILE).read_text())["taken"] / SECOND - time.time()) < 60
    timerfds.adjust(tmp_path)
    assert not (tmp_path / timerfds.FILE).exists()
