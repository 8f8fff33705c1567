"""What is told of each rank, and who did not come."""

from __future__ import annotations

from pathlib import Path

from slurmckpt.capture.gate.region import Region
from slurmckpt.capture.gate.report import report
from tests.unit.gate.core import Core, Process


def test_the_rank_that_did_not_come_is_named(core: Core, tmp_path: Path) -> None:
    with Region.create(tmp_path / "gate", -1, -1) as region:
        handles = []
        for rank in range(3):
            process = Process(core, tmp_path / "gate", 100 + rank)
            handle = process.join(0xAB, 3, rank)
            assert process.try_join(handle)
            handles.append((process, handle))
        for rank, operations in ((0, 4), (1, 4), (2, 1)):
            process, handle = handles[rank]
            thread = process.thread(1)
            for _ in range(operations):
                thread.enter(handle)
                thread.collective(handle, 1024)
                thread.exit()
        told = report(region.snapshot(), lambda pid: pid != 101)
        assert told.waits_for == "rank 2 (pid 102) is at 1 of 4 in communicator 00000000000000ab (last: AllReduce)"
        assert told.absent == {102}
        assert [(one.rank, one.state, one.operations, one.missing) for one in told.ranks] == [
            (0, "running", 4, 0),
            (1, "gone", 4, 0),
            (2, "running", 1, 3),
        ]
        assert (told.ranks[0].last, told.ranks[0].elements) == ("AllReduce", 1024)
        before = told.counts
        thread.enter(handle)
        thread.collective(handle)
        thread.exit()
        assert report(region.snapshot(), lambda pid: True).counts > before


def test_sends_and_receives_that_do_not_meet(core: Core, tmp_path: Path) -> None:
    with Region.create(tmp_path / "gate", -1, -1) as region:
        sender, receiver = (Process(core, tmp_path / "gate", 100 + rank) for rank in (0, 1))
        handles = [process.join(5, 2, rank) for rank, process in enumerate((sender, receiver))]
        for process, handle in zip((sender, receiver), handles, strict=True):
            assert process.try_join(handle)
        thread = sender.thread(1)
        for _ in range(2):
            thread.enter(handles[0])
            thread.transfer(handles[0], sends=True)
            thread.peer(handles[0], sends=True, peer=1)
            thread.exit()
        told = report(region.snapshot(), lambda pid: True)
        assert told.waits_for.startswith("rank 1 (pid 101) is at 0 of 2")
        assert [(one.rank, one.missing) for one in told.ranks] == [(0, 0), (1, 2)]
        thread = receiver.thread(1)
        for _ in range(3):
            thread.enter(handles[1])
            thread.transfer(handles[1], sends=False)
            thread.peer(handles[1], sends=False, peer=0)
            thread.exit()
        told = report(region.snapshot(), lambda pid: True)
        assert told.waits_for.startswith("rank 0 (pid 100) is at 2 of 3")
        assert [(one.rank, one.missing) for one in told.ranks] == [(0, 1), (1, 0)]
        assert told.absent == {100}


def test_ranks_that_wait_for_each_other_are_both_named_and_neither_is_absent(core: Core, tmp_path: Path) -> None:
    """Each has enqueued what the other has not, in another communicator: a deadlock of the program."""
    with Region.create(tmp_path / "gate", -1, -1) as region:
        for rank in (0, 1):
            process = Process(core, tmp_path / "gate", 100 + rank)
            handles = [process.join(communicator, 2, rank) for communicator in (1, 2)]
            assert all(process.try_join(handle) for handle in handles)
            thread = process.thread(1)
            thread.enter(handles[rank])
            thread.collective(handles[rank])
            thread.exit()
        told = report(region.snapshot(), lambda pid: True)
        assert "rank 0 (pid 100)" in told.waits_for and "rank 1 (pid 101)" in told.waits_for
        assert told.absent == frozenset()
