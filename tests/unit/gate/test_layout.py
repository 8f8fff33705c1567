"""The region as bytes: what C writes, Python reads; and whatever a user writes there is read within bounds."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmckpt.capture.gate import boundary, layout
from slurmckpt.capture.gate.judge import judge
from slurmckpt.capture.gate.region import GateError, Region
from tests.unit.gate.core import Core, Process


def test_what_the_gate_writes_is_read(core: Core, tmp_path: Path) -> None:
    with Region.create(tmp_path / "gate", -1, -1) as region:
        process = Process(core, tmp_path / "gate", 4242)
        handle = process.join(0x1122334455667788, 8, 3)
        assert process.try_join(handle)
        thread = process.thread(99)
        assert thread.try_enter(handle)
        thread.collective(handle, 1000)
        thread.transfer(handle, sends=True, elements=77)
        thread.transfer(handle, sends=False, elements=78)
        thread.peer(handle, sends=True, peer=5)
        thread.captured(handle)
        snapshot = region.snapshot()
        (member,), (pair,) = snapshot.members, snapshot.pairs
        assert member == layout.Member(
            index=0,
            pid=4242,
            state=layout.State.PRESENT,
            communicator=0x1122334455667788,
            ranks=8,
            rank=3,
            birth=1,
            thread=99,
            held=0,
            granted=0,
            taken=0,
            captured=1,
            function="Recv",
            deferred=1,
            entries=2,
            exits=1,
            collectives=1,
            transfers=2,
            elements=78,
        )
        assert pair == layout.Pair(member=0, peer=5, sent=1, received=0)
        thread.exit()
        # The one whose peer never became known was dropped by NCCL.
        assert region.snapshot().members[0].deferred == 0
        region.write(member.granted_at, 1)
        assert region.snapshot().members[0].granted == 1
        process.leave(handle)
        assert region.snapshot().members[0].state is layout.State.LEFT


def test_the_request_is_read_by_the_gate(core: Core, tmp_path: Path) -> None:
    with Region.create(tmp_path / "gate", -1, -1) as region:
        process = Process(core, tmp_path / "gate", 1)
        handle = process.join(1, 2, 0)
        process.try_join(handle)
        thread = process.thread(1)
        closing = boundary.Closing(region, lambda pid: True, boundary.Patience())
        closing.begin(0)
        assert not thread.try_enter(handle)
        assert not thread.retry(handle)
        closing.open()
        assert thread.retry(handle)


def test_tables_that_are_full_are_said_and_places_are_used_again(core: Core, tmp_path: Path) -> None:
    with Region.create(tmp_path / "gate", -1, -1) as region:
        process = Process(core, tmp_path / "gate", os.getpid())
        handles = [process.join(number, 2, 0) for number in range(layout.MEMBERS)]
        assert all(handles) and not region.header().notes
        assert process.join(9999, 2, 0) == 0
        assert region.header().notes == layout.NOTE_FULL
        assert "full" in judge(region.snapshot(), lambda pid: True).reason()
        process.leave(handles[7])
        again = process.join(9999, 2, 0)
        assert again
        last = region.snapshot().members[7]
        assert (last.communicator, last.birth) == (9999, layout.MEMBERS + 1)


def test_pairs_of_an_earlier_use_of_a_place_are_not_seen(core: Core, tmp_path: Path) -> None:
    with Region.create(tmp_path / "gate", -1, -1) as region:
        process = Process(core, tmp_path / "gate", os.getpid())
        handles = [process.join(number, 3, 0) for number in range(layout.MEMBERS)]
        thread = process.thread(1)
        thread.peer(handles[0], True, 1)
        process.leave(handles[0])
        again = process.join(5555, 3, 0)
        assert region.snapshot().pairs == ()
        thread.peer(again, False, 2)
        assert region.snapshot().pairs == (layout.Pair(0, 2, 0, 1),)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"x" * 64,
        layout.empty()[:-1],
        struct.pack("=QIII4x", layout.MAGIC, layout.VERSION + 1, layout.MEMBERS, layout.PAIRS) + bytes(104),
    ],
)
def test_what_is_no_region_is_refused_by_both_sides(damage: bytes, core: Core, tmp_path: Path) -> None:
    path = tmp_path / "gate"
    path.write_bytes(damage + bytes(layout.SIZE - len(damage) if damage[:1] != b"" and len(damage) > 64 else 0))
    if damage == layout.empty()[:-1]:
        path.write_bytes(layout.empty() + bytes(layout.SIZE - layout.HEADER_SIZE - 1))
    with pytest.raises(GateError):
        Region.open(path)
    with pytest.raises(OSError, match="Invalid argument"):
        Process(core, path, 1)


def test_links_directories_and_pipes_are_refused(tmp_path: Path) -> None:
    Region.create(tmp_path / "real", -1, -1).close()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "directory", "pipe", "missing"):
        with pytest.raises(GateError):
            Region.open(tmp_path / name)
    # What stands in the way of a new one is taken away, and never followed.
    Region.create(tmp_path / "link", -1, -1).close()
    assert not (tmp_path / "link").is_symlink() and (tmp_path / "real").stat().st_size == layout.SIZE
    with pytest.raises(GateError):
        Region.create(tmp_path / "directory", -1, -1)


def test_a_file_that_is_cut_off_is_an_error_and_no_signal(tmp_path: Path) -> None:
    with Region.create(tmp_path / "gate", -1, -1) as region:
        os.truncate(tmp_path / "gate", 100)
        with pytest.raises(GateError, match="cut off"):
            region.snapshot()
        os.truncate(tmp_path / "gate", 0)
        with pytest.raises(GateError):
            boundary.Closing(region, lambda pid: True, boundary.Patience()).begin(0)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(min_size=1, max_size=4096), seed=st.integers(0, 255))
def test_whatever_the_user_writes_there_is_judged_within_bounds(noise: bytes, seed: int, tmp_path: Path) -> None:
    path = tmp_path / "gate"
    body = (noise * (layout.SIZE // len(noise) + 1))[: layout.SIZE - 24]
    path.write_bytes(layout.empty()[:24] + body)
    with Region.open(path) as region:
        verdict = judge(region.snapshot(), lambda pid: pid % 2 == seed % 2)
        assert len(verdict.reason()) < 2000
        closing = boundary.Closing(region, lambda pid: True, boundary.Patience(stall=0, total=1))
        closing.begin(0)
        for now in (0.0, 0.5, 1.0, 2.0):
            if closing.step(now) is not False:
                break
        closing.open()
        assert not region.header().closed
