"""The timer, with numbers worked out by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.config import Schedule
from slurmckpt.coordinator.schedule import seconds_until_next
from slurmckpt.units import Interval

EXACT = Schedule(jitter=0.0)
AUTO = Interval("auto")


def pause(interval: Interval, schedule: Schedule = EXACT, cost: float | None = None) -> float | None:
    return seconds_until_next(interval, schedule, cost, random.Random(1))


@pytest.mark.parametrize("interval", [Interval("off"), Interval("manual")])
def test_no_timer(interval: Interval) -> None:
    assert pause(interval) is None


def test_fixed() -> None:
    assert pause(Interval("fixed", 600.0), cost=100.0) == 600.0


def test_not_below_the_sites_minimum() -> None:
    assert pause(Interval("fixed", 5.0), Schedule(jitter=0.0, min_interval=60.0)) == 60.0


def test_auto_before_anything_was_measured() -> None:
    # sqrt(2 * 30 s * 604,800 s) = sqrt(36,288,000) s
    assert pause(AUTO) == pytest.approx(6023.9522, abs=1e-3)


def test_auto_is_youngs_optimum() -> None:
    # sqrt(2 * 2 s * 10,000 s) = 200 s; the overhead limit would allow every 40 s
    assert pause(AUTO, Schedule(jitter=0.0, mtbf=10_000.0, max_overhead=0.05), cost=2.0) == pytest.approx(200.0)


def test_auto_within_the_allowed_overhead() -> None:
    # Young: sqrt(2 * 50 * 100) = 100 s. 50 s of freeze may be at most 5 %, so every 1000 s.
    assert pause(AUTO, Schedule(jitter=0.0, mtbf=100.0, max_overhead=0.05), cost=50.0) == pytest.approx(1000.0)


def test_auto_of_a_checkpoint_that_costs_nothing() -> None:
    assert pause(AUTO, Schedule(jitter=0.0, min_interval=1.0), cost=0.0) == 1.0


@given(st.integers(0, 2**32), st.floats(0, 0.5))
def test_jitter_stays_within_its_fraction(seed: int, jitter: float) -> None:
    found = seconds_until_next(Interval("fixed", 100.0), Schedule(jitter=jitter), None, random.Random(seed))
    assert found is not None
    assert 100 * (1 - jitter) - 1e-9 <= found <= 100 * (1 + jitter) + 1e-9


def test_jitter_spreads_both_ways() -> None:
    spread = random.Random(7)
    found = [seconds_until_next(Interval("fixed", 100.0), Schedule(jitter=0.05), None, spread) for _ in range(200)]
    numbers = [seconds for seconds in found if seconds is not None]
    assert len(numbers) == 200
    assert 95 <= min(numbers) < 97 and 103 < max(numbers) <= 105
