"""Which pids pods begin with: never the same for those that run at the same time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from slurmckpt.coordinator.first_pid import first_pid, place

LARGE, SMALL = 4_194_304, 32_768
RESERVED = 300  # of Linux


def first_pids(jobs: int, steps: int, epochs: int, pid_max: int) -> list[int]:
    """Of so many jobs in a row, each with its script and steps."""
    names = ["batch", *map(str, range(steps - 1))]
    return [
        first_pid(place(7000 + job, epoch, name), pid_max)
        for job in range(jobs)
        for name in names
        for epoch in range(1, epochs + 1)
    ]


@pytest.mark.parametrize(
    ("job_id", "epoch", "step", "pid_max", "pid"),
    [
        # 300 + 3145428 times the fraction of 7 * 0.6180339887 + 1.4142135624 = 5.7404514836
        (7, 1, "batch", LARGE, 2_329_336),
        (7, 1, "batch", SMALL, 18_275),
        (7, 1, "batch", LARGE - 1, 18_275),
        (7, 1, "batch", 131_072, 18_275),
        # with 3.6055512755, 1.4142135624 or 0.6180339887 more
        (7, 1, "0", LARGE, 1_088_626),
        (7, 2, "batch", LARGE, 486_787),
        (8, 1, "batch", LARGE, 1_127_890),
        (0, 0, "batch", LARGE, RESERVED),
        (0, 0, "batch", 301, RESERVED),
        (7, 1, "batch", 301, RESERVED),
    ],
)
def test_examples(job_id: int, epoch: int, step: str, pid_max: int, pid: int) -> None:
    assert first_pid(place(job_id, epoch, step), pid_max) == pid


def test_the_ends_of_the_range() -> None:
    assert first_pid(0, LARGE) == first_pid(0, SMALL) == RESERVED
    assert first_pid(2**64 - 1, LARGE) == LARGE * 3 // 4 - 1
    assert first_pid(2**64 - 1, SMALL) == SMALL * 3 // 4 - 1


@pytest.mark.parametrize(
    ("jobs", "steps", "epochs"),
    [(2000, 1, 1), (1, 1000, 3), (20, 4, 1), (30, 6, 1), (40, 6, 2), (128, 2, 1), (128, 3, 2), (500, 2, 1)],
)
def test_pods_of_one_time_lie_apart(jobs: int, steps: int, epochs: int) -> None:
    """At least by a seventh of what equal distances would be."""
    found = sorted(first_pids(jobs, steps, epochs, LARGE))
    even = LARGE * 3 // 4 / len(found)
    assert min(after - before for before, after in pairwise(found)) > even / 7


def test_few_pids_are_enough_for_what_a_node_runs() -> None:
    found = sorted(first_pids(40, 3, 2, SMALL))
    assert len(found) == 240
    assert min(after - before for before, after in pairwise(found)) >= 10
