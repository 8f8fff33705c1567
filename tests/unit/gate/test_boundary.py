"""The coordinator's side, step by step, with a rank that moves exactly where it hurts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurmckpt.capture.gate import boundary, layout
from slurmckpt.capture.gate.judge import judge
from slurmckpt.capture.gate.region import GateError, Region
from tests.unit.awaiting import wait_until
from tests.unit.gate.core import Core, Process

EXPIRED_AT = layout.CLOSED_AT + 44  # written by ranks
PATIENCE = boundary.Patience(stall=1.0, total=10.0)


class Racing(Region):
    """Something happens right before a word is written."""

    before: Callable[[int], None] = staticmethod(lambda offset: None)

    def write(self, offset: int, value: int) -> None:
        self.before(offset)
        super().write(offset, value)


class Rank:
    """One of two ranks, with two communicators."""

    def __init__(self, core: Core, path: Path, number: int) -> None:
        self.process = Process(core, path, 100 + number)
        self.handles = [self.process.join(communicator, 2, number) for communicator in (1, 2)]
        assert all(self.process.try_join(handle) for handle in self.handles)
        self.threads = [self.process.thread(1), self.process.thread(2)]

    def operation(self, communicator: int = 0, thread: int = 0) -> bool:
        """False: it is held at its beginning."""
        if not self.threads[thread].try_enter(self.handles[communicator]):
            return False
        self.finish(communicator, thread)
        return True

    def finish(self, communicator: int = 0, thread: int = 0) -> None:
        """Of an operation that has begun."""
        self.threads[thread].collective(self.handles[communicator])
        self.threads[thread].exit()


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Racing]:
    Region.create(tmp_path / "gate", -1, -1).close()
    with Racing.open(tmp_path / "gate") as opened:
        assert isinstance(opened, Racing)
        yield opened


@pytest.fixture
def ranks(core: Core, region: Racing, tmp_path: Path) -> list[Rank]:
    return [Rank(core, tmp_path / "gate", number) for number in (0, 1)]


def begin(region: Region) -> boundary.Closing:
    closing = boundary.Closing(region, lambda pid: True, PATIENCE)
    closing.begin(0.0)
    return closing


def test_leave_that_comes_too_late_is_taken_back(region: Racing, ranks: list[Rank]) -> None:
    """Rank 0 goes on by itself in the moment in which it is given leave: it must not find the leave at the boundary."""
    first, second = ranks
    assert second.threads[0].try_enter(second.handles[0])
    closing = begin(region)
    assert not first.threads[0].try_enter(first.handles[0])
    assert [closing.step(0.0), closing.step(0.1)] == [False, False]

    def goes_on(offset: int) -> None:
        if offset >= layout.MEMBERS_AT and not done:
            done.append(offset)
            second.finish()
            assert first.threads[0].retry(first.handles[0])
            first.finish()

    done: list[int] = []
    region.before = goes_on
    assert closing.step(1.1) is False and done
    now, answer = 1.2, closing.step(1.2)
    while answer is False:
        now += 0.1
        answer = closing.step(now)
    assert answer is True and now < 2.0
    assert not first.operation() and not second.operation()


def test_without_progress_one_operation_of_one_rank_is_let_through(region: Racing, ranks: list[Rank]) -> None:
    first, second = ranks
    assert second.threads[0].try_enter(second.handles[0])
    closing = begin(region)
    assert not first.threads[0].try_enter(first.handles[0])
    assert [closing.step(0.0), closing.step(0.5)] == [False, False]
    assert not first.threads[0].retry(first.handles[0])
    assert closing.step(1.1) is False
    assert first.threads[0].retry(first.handles[0])
    first.finish()
    # Rank 1 lags now; what it has begun counts.
    second.finish()
    assert [closing.step(1.2), closing.step(1.3), closing.step(1.4)][-1] is True


def test_a_thread_goes_on_for_another_one_of_its_process_after_a_stall(region: Racing, ranks: list[Rank]) -> None:
    """Communicator 2 was used by thread 2 last. This time it is thread 1 that comes to it, after communicator 1."""
    first, second = ranks
    assert first.operation(1, thread=1) and second.operation(1, thread=1)
    assert second.operation(1, thread=1)
    closing = begin(region)
    assert not first.operation(0)
    assert [closing.step(0.0), closing.step(0.1)] == [False, False]
    assert not first.threads[0].retry(first.handles[0])
    assert closing.step(1.2) is False
    # All further ones go through as long as anything of the process lags, without further leave.
    assert first.threads[0].retry(first.handles[0])
    first.finish(0)
    assert first.operation(0) and first.operation(0)
    assert first.operation(1)
    assert not first.operation(1)


def test_leave_of_an_earlier_request_is_no_leave(region: Racing, ranks: list[Rank]) -> None:
    """Neither that of one rank, nor that of all threads to go on for each other."""
    first, second = ranks
    assert first.operation(1, thread=1) and second.operation(1, thread=1)
    assert second.operation(1, thread=1)
    (member, *_) = region.snapshot().members
    region.write(member.granted_at, member.granted + 1)
    region.write(layout.WIDE_AT, 1)
    begin(region)
    assert not first.operation(0)


def test_a_rank_that_has_not_come_to_this_pod_may_be_anywhere(region: Racing, core: Core, tmp_path: Path) -> None:
    """Still on its way, or on another node: nobody knows what it has enqueued."""
    only = Process(core, tmp_path / "gate", 100)
    assert only.try_join(only.join(1, 2, 0))
    closing = begin(region)
    assert [closing.step(0.0), closing.step(0.1)] == [False, False]
    given_up = closing.step(10.0)
    assert isinstance(given_up, boundary.NoBoundary)
    assert "1 of the 2 ranks of communicator 0000000000000001 have come to this pod" in given_up.reason


def test_who_is_awaited_in_a_new_communicator_comes_to_it(region: Racing, ranks: list[Rank]) -> None:
    """And only there: a communicator that nobody is a member of waits until the gate opens."""
    first, second = (rank.process for rank in ranks)
    assert first.try_join(first.join(3, 2, 0))
    begin(region)
    assert second.try_join(second.join(3, 2, 1))
    assert not second.try_join(second.join(4, 2, 1))


def test_sends_and_receives_whose_peers_nobody_knows_yet_concern_everybody(region: Racing, ranks: list[Rank]) -> None:
    """As long as who has called them is inside: what it enqueues may wait for this rank."""
    first, second = ranks
    assert first.threads[0].try_enter(first.handles[0])
    first.threads[0].transfer(first.handles[0], sends=True)
    begin(region)
    assert second.threads[0].try_enter(second.handles[0])


def test_what_a_rank_has_enqueued_before_it_left_must_be_enqueued(region: Racing, ranks: list[Rank]) -> None:
    first, second = ranks
    assert first.operation() and second.operation() and first.operation()
    begin(region)
    first.process.leave(first.handles[0])
    assert second.operation()
    assert not second.operation()


def test_ranks_stay_at_a_boundary_for_longer_than_the_lease(region: Racing, ranks: list[Rank]) -> None:
    """Signs of life come as long as it is kept, and not for longer."""
    first, _ = ranks
    closing = boundary.Closing(region, lambda pid: True, PATIENCE, lease=4.0)
    closing.begin(0.0)
    thread = threading.Thread(target=lambda: first.threads[0].enter(first.handles[0]))
    thread.start()
    try:
        wait_until(lambda: bool(region.snapshot().members[0].held), "the rank is held")
        assert [closing.step(0.0), closing.step(0.1)] == [False, True]
        reached = boundary.Boundary(closing)
        thread.join(5)
        assert thread.is_alive() and reached.still_holds()
        reached.release()
    finally:
        thread.join(30)
    assert not thread.is_alive()


def test_whatever_happens_on_the_way_the_gate_opens(region: Racing, ranks: list[Rank]) -> None:
    """Who waits for the boundary is cancelled; or finds that the memory is no gate any more."""
    assert ranks[0].operation()

    async def cancelled() -> None:
        closing = asyncio.create_task(boundary.close(region, lambda pid: True, PATIENCE))
        while not region.header().closed:
            await asyncio.sleep(0.001)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()

    asyncio.run(cancelled())
    assert not region.header().closed

    def damage(offset: int) -> None:
        if offset == layout.BEAT_AT:
            region.before = lambda offset: None
            region.write(0, 0)

    region.before = damage
    with pytest.raises(GateError, match="has been overwritten"):
        asyncio.run(boundary.close(region, lambda pid: True, PATIENCE))
    region.write(0, int.from_bytes(layout.empty()[:4], "little"))
    assert not region.header().closed


def test_a_new_request_counts_after_one_that_was_opened_from_inside(region: Racing, ranks: list[Rank]) -> None:
    closing = begin(region)
    region.write(EXPIRED_AT, closing.epoch)
    assert region.header().expired == closing.epoch
    answer = closing.step(0.0)
    assert isinstance(answer, boundary.NoBoundary) and "opened from inside the pod" in answer.reason
    again = begin(region)
    assert again.epoch == closing.epoch + 1
    assert not ranks[0].operation()
    assert [again.step(0.0), again.step(0.1)] == [False, True]
    assert not closing.still_holds() and again.still_holds()


def test_numbers_of_requests_begin_again_after_the_last(region: Racing) -> None:
    region.write(layout.EPOCH_AT, 0xFFFFFFFF)
    closing = begin(region)
    assert closing.epoch == 1
    assert [closing.step(0.0), closing.step(0.1)] == [False, True]


def test_transfers_whose_peers_become_known_later(region: Racing, ranks: list[Rank]) -> None:
    """With graphs about, NCCL starts their events from a callback of the driver: until then nobody knows who lags."""
    first, second = ranks
    sender, receiver = first.threads[0], second.threads[0]
    assert sender.try_enter(first.handles[0])
    sender.transfer(first.handles[0], sends=True)
    sender.exit()
    closing = begin(region)
    assert [closing.step(0.0), closing.step(0.1)] == [False, False]
    assert judge(region.snapshot(), lambda pid: True).reasons == [
        "sends or receives of rank 0 in communicator 0000000000000001 are not launched yet"
    ]
    assert not receiver.try_enter(second.handles[0])
    sender.peer(first.handles[0], sends=True, peer=1, in_group=False)
    # Now rank 1 is known to be waited for.
    assert receiver.retry(second.handles[0])
    receiver.transfer(second.handles[0], sends=False)
    receiver.peer(second.handles[0], sends=False, peer=0)
    receiver.exit()
    assert [closing.step(0.2), closing.step(0.3)] == [False, True]
