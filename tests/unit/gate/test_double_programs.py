"""Simulated device, real processes: random programs on the double of NCCL, captured at boundaries and without."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmckpt.capture.gate import boundary, layout
from tests.unit.awaiting import wait_until
from tests.unit.gate import oracle
from tests.unit.gate.board import Case
from tests.unit.gate.pool import Pool
from tests.unit.gate.programs import Kinds, Program, Replay, generate
from tests.unit.gate.test_processes import alive, gated

PATIENCE = boundary.Patience(stall=0.01, total=50.0)
# A lock at a boundary does not wait. Where graphs are replayed it may wait in vain, as it may without a gate.
LOCK_MS = 10_000
VAIN_LOCK_MS = 150
VAIN_LOCKS = 20
NOT_READY = 600
STOPS = 2
# Of 2, 4 and 8 ranks, each with and without callbacks of the driver. Hypothesis may draw one twice.
RANKS = (2, 4, 8)
DRAWN, DIFFERENT = 200, 170
NAIVE = 10


def drawn(seed: int, ranks: int, length: int, kinds: Kinds, in_place: bool) -> Case:
    """The case of these numbers. Of the same seed, a shorter program is the beginning of a longer one."""
    dice = random.Random(seed)
    program = generate(seed, ranks, length, kinds)
    places = dice.sample(range(len(program.operations)), min(STOPS, len(program.operations)))
    return Case(program, dice.randrange(ranks), tuple(sorted(places)), dice.choice((5, 6, 7)), in_place)


@contextmanager
def at_boundary(pool: Pool) -> Iterator[boundary.Closing]:
    """Bring the ranks there. Only when the gate is closed the one that has stopped goes on."""
    closing = boundary.Closing(pool.region, alive, PATIENCE)
    closing.begin(time.monotonic())
    pool.board.closing = True
    while (answer := closing.step(time.monotonic())) is False:
        time.sleep(0.001)
    assert answer is True, answer
    yield closing
    closing.open()
    pool.go_on()
    pool.board.closing = False


@contextmanager
def locked(pool: Pool, ranks: list[int], milliseconds: int) -> Iterator[list[int]]:
    """One after the other, until one is not ready: gives those that are locked."""
    done: list[int] = []
    for rank in ranks:
        answer = pool.lock(rank, milliseconds)
        assert answer in (0, NOT_READY)
        if answer:
            break
        done.append(rank)
    yield done
    for rank in done:
        pool.unlock(rank)


def check_nothing_is_half_done(pool: Pool, case: Case, progress: oracle.Progress) -> None:
    """What is in the ranks' memory while all are locked is what would be captured."""
    for communicator, members in enumerate(case.program.communicators):
        done = {rank: progress.of(rank, communicator, pool.sum_of(rank, communicator)) for rank in members}
        assert len(set(done.values())) == 1, f"collectives of communicator {communicator} that ranks have done: {done}"


def seen_by_the_gate(program: Program) -> list[int]:
    """How many collectives each rank has enqueued in each of its communicators: all but those in graphs."""
    counts = oracle.collectives(program, replays=False)
    return [counts[number] for number, members in enumerate(program.communicators) for _ in members]


def play(pool: Pool, case: Case, order: list[int]) -> None:
    """Run it. At each of its stops bring the ranks to a boundary, and lock them in this order."""
    progress = oracle.Progress(case.program)
    replays = any(isinstance(operation, Replay) for operation in case.program.operations)
    with pool.running(case):
        for stop in range(len(case.stops)):
            pool.wait_stop(stop)
            with at_boundary(pool) as closing, locked(pool, order, VAIN_LOCK_MS if replays else LOCK_MS) as done:
                assert replays or len(done) == pool.ranks, "a lock waits for ever at a boundary"
                if len(done) == pool.ranks:
                    check_nothing_is_half_done(pool, case, progress)
                assert closing.still_holds()
        assert pool.results() == oracle.results(case.program)
        members = pool.region.snapshot().members
        assert {member.state for member in members} == {layout.State.LEFT}
        assert sorted(member.collectives for member in members) == sorted(seen_by_the_gate(case.program))
        assert not any(member.is_inside or member.deferred for member in members)


@pytest.fixture
def pool(request: pytest.FixtureRequest, libnccl: Path, built: Path, tmp_path: Path) -> Iterator[Pool]:
    """Of so many ranks. late: NCCL says to whom they send in a callback of the driver."""
    ranks, late = request.param
    environment = gated(built, tmp_path / "gate") | {"NCCL_DOUBLE_HOST_CALLBACK": str(late)}
    with Pool(libnccl, ranks, environment, tmp_path / "gate") as made:
        yield made


@pytest.mark.parametrize(
    ("pool", "late"), [((ranks, late), late) for ranks in RANKS for late in (0, 1)], indirect=["pool"]
)
def test_what_is_captured_at_a_boundary_is_whole_and_the_program_goes_on(pool: Pool, late: int) -> None:
    """Two boundaries of each program: rank after rank can be locked there, and nothing is half done."""
    played = set()

    @settings(max_examples=DRAWN)
    @given(seed=st.integers(0, 2**32), length=st.integers(3, 60), replays=st.sampled_from((False, False, False, True)))
    def one(seed: int, length: int, replays: bool) -> None:
        case = drawn(seed, pool.ranks, length, Kinds(replays=replays), in_place=not late)
        try:
            play(pool, case, order_of(seed, pool))
        except BaseException:
            # Hypothesis looks for a smaller one first, and may be cut short.
            print(f"this fails: seed={seed}, length={length}, replays={replays}: {case}")
            raise
        played.add(repr(case.program))

    one()
    assert len(played) >= DIFFERENT


@pytest.mark.parametrize("pool", [(ranks, 0) for ranks in RANKS], indirect=True)
def test_without_a_gate_rank_after_rank_cannot_be_locked(pool: Pool) -> None:
    """Of many programs: what another one has enqueued waits for what one that is locked has not."""
    hanging = 0
    for seed in range(NAIVE):
        case = drawn(seed, pool.ranks, 40, Kinds(barriers=False), in_place=True)
        with pool.running(case):
            pool.wait_stop(0)
            # First the one that has stopped: it waits for nobody.
            assert pool.lock(case.stopping, LOCK_MS) == 0
            done = [case.stopping]
            for _ in case.stops:
                pool.go_on()
            hanging += naive_lock_hangs(pool, case, order_of(seed, pool), done)
            for rank in done:
                pool.unlock(rank)
            # Given up, it has done no harm.
            assert pool.results() == oracle.results(case.program)
    assert hanging > NAIVE // 2


def naive_lock_hangs(pool: Pool, case: Case, order: list[int], done: list[int]) -> bool:
    """Lock one after the other while they run, until all are locked or it is certain that they never will be.

    done: those that are locked.
    """
    for rank in [rank for rank in order if rank not in done]:
        for _ in range(VAIN_LOCKS):
            if pool.lock(rank, VAIN_LOCK_MS) == 0:
                done.append(rank)
                break
            if waits_for_one_of(done, pool, case):
                return True
        else:
            return False  # it waits, but not for a collective
    return False


def waits_for_one_of(done: list[int], pool: Pool, case: Case) -> bool:
    """Whether another rank has enqueued a collective that one of these has not, and cannot while it is locked."""
    progress = oracle.Progress(case.program)
    for communicator, members in enumerate(case.program.communicators):
        behind = [progress.of(rank, communicator, pool.sum_of(rank, communicator)) for rank in members if rank in done]
        others = [pool.board.enqueued[rank][communicator] for rank in members if rank not in done]
        if behind and others and min(behind) < max(others):
            return True
    return False


def order_of(seed: int, pool: Pool) -> list[int]:
    """In which the ranks are locked."""
    return random.Random(seed).sample(range(pool.ranks), pool.ranks)


@pytest.mark.parametrize("pool", [(2, 0)], indirect=True)
def test_the_gate_says_that_graphs_are_in_use(pool: Pool) -> None:
    """It does not see their replays: the lock's time limit decides, and nothing is left locked."""
    program = generate(3, 2, 200, Kinds(splits=False, replays=True))
    case = Case(program, stopping=0, stops=(150,))
    with pool.running(case):
        pool.wait_stop(0)
        wait_until(lambda: any(one.captured for one in pool.region.snapshot().members), "a graph is captured")
        with at_boundary(pool) as closing, locked(pool, [0, 1], VAIN_LOCK_MS):
            assert closing.graphs
        assert pool.results() == oracle.results(program)
