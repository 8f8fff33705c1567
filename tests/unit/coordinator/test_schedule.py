"""The timer, with numbers worked out by hand."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.config import Schedule
from slurmckpt.coordinator.schedule import daly, seconds_until_next
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
    # x = 30 / 1,209,600; sqrt(36,288,000) s * (1 + sqrt(x) / 3 + x / 9) - 30 s = 6023.9522 s * 1.00166278 - 30 s
    assert pause(AUTO) == pytest.approx(6003.9688, abs=1e-3)


def test_auto_is_dalys_optimum() -> None:
    # x = 2 / 20,000 = 1e-4; sqrt(40,000) s = 200 s; 200 s * (1 + 0.01 / 3 + 1e-4 / 9) - 2 s
    assert pause(AUTO, Schedule(jitter=0.0, mtbf=10_000.0, max_overhead=0.05), cost=2.0) == pytest.approx(198.66889)


@pytest.mark.parametrize(("cost", "mtbf"), [(1.0, 10_000.0), (30.0, 604_800.0), (60.0, 1000.0), (300.0, 1000.0)])
def test_dalys_formula_is_near_the_true_optimum(cost: float, mtbf: float) -> None:
    """The time that a second of work takes by his model, e^((t + cost) / mtbf) - 1 over t, is least there."""

    def price(work: float) -> float:
        return math.expm1((work + cost) / mtbf) / work

    best = min((mtbf * step / 20_000 for step in range(1, 20_001)), key=price)
    assert daly(cost, mtbf) == pytest.approx(best, rel=0.03, abs=mtbf / 10_000)
    assert price(daly(cost, mtbf)) <= price(best) * 1.001


@pytest.mark.parametrize("cost", [200.0, 10_000.0])
def test_daly_where_a_checkpoint_takes_longer_than_two_failures(cost: float) -> None:
    assert daly(cost, 100.0) == 100.0


def test_auto_within_the_allowed_overhead() -> None:
    # Daly: 69 s. 50 s of freeze may be at most 5 % of all time, so there are 950 s of work between them.
    assert pause(AUTO, Schedule(jitter=0.0, mtbf=100.0, max_overhead=0.05), cost=50.0) == pytest.approx(950.0)


def test_a_thousand_jobs_that_start_in_the_same_second() -> None:
    """Their first checkpoints spread over half of the interval, and no later than asked for; so do all after it."""
    schedule, interval = Schedule(), Interval("fixed", 600.0)
    starts = []
    for job in range(1000):
        spread, at = random.Random(job), 0.0
        moments = []
        for number in range(4):
            at += seconds_until_next(interval, schedule, 1.0, spread, number == 0) or 0.0
            moments.append(at)
        starts.append(moments)
    assert all(300 <= moments[0] <= 600 for moments in starts)
    for number in range(4):
        seconds = Counter(int(moments[number]) for moments in starts)
        assert max(seconds.values()) <= 14  # 3.3 on average
        assert len(seconds) > 250


def test_no_spread_where_no_jitter_is_wanted() -> None:
    assert seconds_until_next(Interval("fixed", 600.0), EXACT, None, random.Random(1), True) == 600.0


def test_the_first_is_not_earlier_than_the_sites_minimum() -> None:
    schedule = Schedule(min_interval=60.0)
    found = [seconds_until_next(Interval("fixed", 61.0), schedule, None, random.Random(n), True) for n in range(50)]
    assert all(seconds is not None and 60 <= seconds <= 61 for seconds in found)


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
