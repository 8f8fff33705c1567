"""Each participant is killed in each state of the gate: nobody else stays held, and the gate is open in the end."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt.capture.gate import boundary, layout
from slurmckpt.capture.gate.judge import judge
from slurmckpt.capture.gate.region import Region
from tests.unit.awaiting import wait_until
from tests.unit.gate.core import Core, Process
from tests.unit.gate.test_processes import alive

COMMUNICATOR = 77
STALL = 0.3
PATIENCE = boundary.Patience(STALL, total=60.0)
# In seconds: that of a coordinator that lives does not end before the test gives up.
LEASE = 600.0


class Job:
    """Ranks, each a process that does what it is told: j join, o one operation, i one that is never enqueued.

    Ranks 0 and 1 are of one communicator, rank 2 is of another.
    """

    def __init__(self, core: Core, path: Path) -> None:
        self._core, self._path = core, path
        self.region = Region.create(path, -1, -1)
        self._ranks: dict[int, tuple[int, int]] = {}

    def start(self, rank: int, orders: str) -> None:
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._obey(rank, ours)
        os.close(ours)
        self._ranks[rank] = (pid, theirs)
        self.tell(rank, orders)

    def tell(self, rank: int, orders: str) -> None:
        os.write(self._ranks[rank][1], orders.encode())

    def member(self, rank: int) -> layout.Member | None:
        """As it stands in the region; None until it is there."""
        members = [one for one in self.region.snapshot().members if one.communicator == COMMUNICATOR]
        return next((one for one in members if one.rank == rank), None)

    def has(self, rank: int, operations: int) -> None:
        """Wait until it has enqueued so many, and is not held."""

        def condition() -> bool:
            one = self.member(rank)
            joined = one is not None and one.state is layout.State.PRESENT
            return joined and one is not None and (one.collectives, one.held, one.is_inside) == (operations, 0, False)

        wait_until(condition, f"rank {rank} has {operations} operations")

    def is_held(self, rank: int) -> None:
        """Wait until it is."""
        wait_until(lambda: (one := self.member(rank)) is not None and one.held == 1, f"rank {rank} is held")

    def begin(self, total: float = PATIENCE.total) -> boundary.Closing:
        closing = boundary.Closing(self.region, alive, boundary.Patience(STALL, total), LEASE)
        closing.begin(time.monotonic())
        return closing

    def let_lease_end(self) -> None:
        """As when the coordinator has died: who is held goes on. The gate takes no lease for shorter than 100 ms."""
        self.region.write(layout.LEASE_AT, 100)

    def stop(self, rank: int) -> None:
        os.kill(self._ranks[rank][0], signal.SIGSTOP)

    def kill(self, rank: int) -> None:
        pid, pipe = self._ranks.pop(rank)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(pipe)

    def close(self) -> None:
        for rank in list(self._ranks):
            self.kill(rank)
        self.region.close()

    def _obey(self, rank: int, orders: int) -> None:
        try:
            process = Process(self._core, self._path, os.getpid())
            thread = process.thread(os.getpid())
            handle = process.join(COMMUNICATOR, 2, rank) if rank < 2 else process.join(COMMUNICATOR + 1, 2, 0)
            while order := os.read(orders, 1).decode():
                if order == "j":
                    process.admit(handle)
                else:
                    thread.enter(handle)
                    thread.collective(handle)
                    if order == "o":
                        thread.exit()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)


@pytest.fixture
def job(core: Core, tmp_path: Path) -> Iterator[Job]:
    made = Job(core, tmp_path / "gate")
    yield made
    made.close()


def outcome(closing: boundary.Closing) -> bool | boundary.NoBoundary:
    answer: bool | boundary.NoBoundary = False
    while answer is False:
        answer = closing.step(time.monotonic())
        time.sleep(0.002)
    return answer


def is_open(region: Region) -> bool:
    header = region.header()
    return not header.closed or header.expired == header.epoch


def both_at(job: Job, operations: int) -> None:
    for rank in (0, 1):
        job.start(rank, "j" + "o" * operations)
    for rank in (0, 1):
        job.has(rank, operations)


def test_the_coordinator_dies_while_ranks_are_held(job: Job) -> None:
    both_at(job, 1)
    job.begin()
    job.tell(0, "oo")
    job.is_held(0)
    job.let_lease_end()
    job.has(0, 3)
    assert is_open(job.region)
    # Nobody waits for this request again.
    job.region.write(layout.LEASE_AT, int(LEASE * 1000))
    job.tell(1, "oo")
    job.has(1, 3)


def test_the_coordinator_dies_while_a_rank_is_waited_for(job: Job) -> None:
    both_at(job, 1)
    job.tell(0, "o")
    job.has(0, 2)
    job.begin()
    job.tell(0, "o")
    job.is_held(0)
    # What the others wait for goes through at any time.
    job.tell(1, "o")
    job.has(1, 2)
    job.let_lease_end()
    job.has(0, 3)
    assert is_open(job.region)


def test_the_coordinator_dies_at_a_boundary(job: Job) -> None:
    both_at(job, 1)
    closing = job.begin()
    assert outcome(closing) is True
    job.tell(1, "o")
    job.is_held(1)
    assert closing.still_holds()
    job.let_lease_end()
    job.has(1, 2)
    assert is_open(job.region) and not closing.still_holds()


def test_the_coordinator_dies_while_a_rank_is_held_before_it_joins(job: Job) -> None:
    job.begin()
    job.start(0, "jo")
    job.is_held(0)
    job.let_lease_end()
    job.has(0, 1)
    assert is_open(job.region)


def test_the_coordinator_dies_after_it_has_let_one_operation_through(job: Job) -> None:
    both_at(job, 1)
    closing = job.begin()
    job.tell(0, "oo")
    job.is_held(0)
    member = job.member(0)
    assert member is not None and closing.step(time.monotonic()) is False
    job.region.write(member.granted_at, 1)
    wait_until(lambda: (one := job.member(0)) is not None and one.collectives >= 2, "one operation")
    job.let_lease_end()
    job.has(0, 3)
    assert is_open(job.region)


def test_a_rank_dies_while_it_is_held(job: Job) -> None:
    """What it has enqueued is matched: nobody waits for it, and the gate opens as ever."""
    both_at(job, 1)
    closing = job.begin()
    job.tell(0, "o")
    job.is_held(0)
    job.tell(1, "o")
    job.is_held(1)
    job.kill(0)
    assert outcome(closing) is True
    closing.open()
    job.has(1, 2)


def test_a_rank_dies_before_the_request(job: Job) -> None:
    """What it has enqueued is matched: who is left stands."""
    both_at(job, 2)
    job.kill(1)
    closing = job.begin()
    assert outcome(closing) is True
    closing.open()
    job.tell(0, "o")
    job.has(0, 3)


@pytest.mark.parametrize("held", [True, False])
def test_a_rank_dies_at_a_boundary(job: Job, held: bool) -> None:
    """The other one stays where it is until the gate opens, and what is asked when all are frozen is still true."""
    both_at(job, 1)
    closing = job.begin()
    assert outcome(closing) is True
    job.tell(1, "o")
    job.is_held(1)
    if held:
        job.tell(0, "o")
        job.is_held(0)
    job.kill(0)
    closing.beat()
    assert closing.still_holds()
    closing.open()
    job.has(1, 2)


def test_a_rank_dies_that_was_let_through(job: Job) -> None:
    """It has leave to go on, and dies before it has used it: the leave is taken back, and nobody else gets it."""
    both_at(job, 1)
    job.start(2, "")  # joining another communicator's place keeps the gate from its boundary
    closing = job.begin()
    job.tell(0, "o")
    job.is_held(0)
    job.stop(0)
    member = job.member(0)
    assert member is not None
    job.region.write(member.granted_at, member.granted + 1)
    job.kill(0)
    job.kill(2)
    assert outcome(closing) is True
    assert all(one.granted == one.taken for one in job.region.snapshot().members)
    closing.open()
    job.tell(1, "o")
    job.has(1, 2)


def test_a_coordinator_that_comes_back_too_late_finds_its_request_over(job: Job) -> None:
    """It stood still for longer than the lease, on the way and at a boundary: it may not take the gate for closed."""
    both_at(job, 1)
    closing = job.begin()
    job.tell(0, "oo")
    job.is_held(0)
    job.let_lease_end()
    job.has(0, 3)
    answer = closing.step(time.monotonic())
    assert isinstance(answer, boundary.NoBoundary) and "opened from inside the pod" in answer.reason
    # Its late signs of life close nothing.
    closing.beat()
    job.tell(1, "oo")
    job.has(1, 3)


def test_a_rank_dies_that_is_waited_for(job: Job) -> None:
    both_at(job, 1)
    job.tell(0, "o")
    job.has(0, 2)
    closing = job.begin(total=0.5)
    job.tell(0, "o")
    job.is_held(0)
    job.kill(1)
    answer = outcome(closing)
    assert isinstance(answer, boundary.NoBoundary)
    assert "rank 1" in answer.reason and "is at 1 of" in answer.reason and "has left or died" in answer.reason
    assert is_open(job.region)
    job.has(0, answer.behind[0].others)


def test_a_rank_dies_inside(job: Job) -> None:
    """It has come through the gate, and never says that its group is enqueued."""
    both_at(job, 1)
    job.tell(0, "i")
    wait_until(lambda: (one := job.member(0)) is not None and one.is_inside, "rank 0 is inside")
    closing = job.begin()
    job.tell(1, "oo")
    job.is_held(1)
    assert "rank 0" in judge(job.region.snapshot(), alive).reason()
    job.kill(0)
    # Its last operation is counted, and rank 1 has enqueued its own: whether that ends, the lock will tell.
    assert outcome(closing) is True
    closing.open()
    job.has(1, 3)


def test_a_rank_dies_while_it_joins(job: Job) -> None:
    job.start(0, "")
    wait_until(lambda: job.member(0) is not None, "rank 0 is joining")
    closing = job.begin()
    assert [closing.step(time.monotonic()), closing.step(time.monotonic())] == [False, False]
    job.kill(0)
    assert outcome(closing) is True


def test_its_successor_with_the_same_pid_buries_it(core: Core, tmp_path: Path) -> None:
    """Pids inside a pod come again soon: the place must not count as a living rank that stands inside."""
    with Region.create(tmp_path / "gate", -1, -1) as region:
        dead = Process(core, tmp_path / "gate", os.getpid())
        handle = dead.join(COMMUNICATOR, 2, 0)
        dead.try_join(handle)
        dead.thread(1).try_enter(handle)
        successor = Process(core, tmp_path / "gate", os.getpid())
        other = successor.join(COMMUNICATOR + 1, 1, 0)
        assert successor.try_join(other)
        assert [one.state for one in region.snapshot().members] == [layout.State.LEFT, layout.State.PRESENT]
        closing = boundary.Closing(region, alive, PATIENCE)
        closing.begin(0)
        assert [closing.step(0), closing.step(0)] == [False, True]


def test_a_communicator_is_aborted_while_a_thread_is_held_in_it(core: Core, tmp_path: Path) -> None:
    """As a watchdog does it: the thread goes on when the gate opens, and what it uses is still there."""
    with Region.create(tmp_path / "gate", -1, -1) as region:
        process = Process(core, tmp_path / "gate", os.getpid())
        handle = process.join(COMMUNICATOR, 2, 0)
        assert process.try_join(handle)
        closing = boundary.Closing(region, alive, PATIENCE)
        closing.begin(0)
        held = threading.Thread(target=process.thread(7).enter, args=(handle,))
        held.start()
        wait_until(lambda: region.snapshot().members[0].held == 1, "the thread is held")
        process.leave(handle)
        assert [closing.step(0), closing.step(0)] == [False, True]
        closing.open()
        held.join()
        (member,) = region.snapshot().members
        assert (member.state, member.held, member.entries - member.exits) == (layout.State.LEFT, 0, 1)
        # A thread that never comes back from there says nothing about those who are left.
        closing.begin(0)
        assert [closing.step(0), closing.step(0)] == [False, True]
        closing.open()
