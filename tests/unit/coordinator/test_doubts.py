"""Which refusals count: those that two looks agree on."""

from __future__ import annotations

from collections.abc import Sequence

from slurmckpt.coordinator.doubts import Doubts

PIPE = "process 101 (sh) holds a pipe that was opened outside"
RING = "process 7 (node) uses io_uring"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def looks(doubts: Doubts, *found: Sequence[str]) -> list[list[str]]:
    """What counts at each of these looks."""
    counted = []
    for reasons in found:
        counted.append(doubts.settled(reasons))
        doubts.look_again()
    return counted


def test_what_is_seen_twice_counts_and_nothing_beside_it() -> None:
    assert looks(Doubts(), [PIPE, RING], [RING]) == [[], [RING]]
    assert looks(Doubts(), [PIPE, RING], [RING, PIPE]) == [[], [RING, PIPE]]
    assert looks(Doubts(), [PIPE], [], [], [PIPE]) == [[], [], [], [PIPE]]


def test_one_look_is_one_look_however_often_it_is_asked_for() -> None:
    doubts = Doubts()
    assert [doubts.settled([RING]) for _ in range(5)] == [[]] * 5
    assert doubts.settled([RING, RING]) == []
    doubts.look_again()
    assert doubts.settled([RING]) == [RING]


def test_the_same_of_always_other_processes_counts_at_the_fourth_time() -> None:
    """A job that starts very many may be met at a bad moment more than once."""
    found = [[f"process {number} (sh) holds a pipe that was opened outside"] for number in range(101, 106)]
    assert looks(Doubts(), *found) == [[], [], [], found[3], found[4]]


def test_two_of_a_kind_in_one_look_are_one_look() -> None:
    found = [[f"process {number} uses io_uring" for number in (look, look + 1)] for look in (100, 200, 300, 400)]
    assert looks(Doubts(), *found) == [[], [], [], found[3]]


def test_moments_may_come_one_after_the_other() -> None:
    """In the same words: a server is connected with all the time."""
    doubts, counted = Doubts(), []
    for _ in range(4):
        counted.append(doubts.settled(["a connection was just being made"], is_moment=True))
        doubts.look_again()
    assert counted == [[], [], [], ["a connection was just being made"]]


def test_what_took_long_is_not_worth_a_repetition() -> None:
    clock = Clock()
    doubts = Doubts(clock)
    clock.now = 5.0
    assert doubts.settled([RING]) == []
    clock.now = 5.1
    assert doubts.settled([PIPE]) == [PIPE]
