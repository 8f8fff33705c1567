"""When the next group checkpoint is due."""

from __future__ import annotations

import math
import random

from slurmckpt.config import Schedule
from slurmckpt.units import Interval

_FIRST_AUTO_COST = 30.0  # seconds; replaced by the measured cost after the first checkpoint
_EARLIEST_FIRST = 0.5  # of the interval


def daly(cost: float, mtbf: float) -> float:
    """Seconds of work between two checkpoints that lose the least time to checkpoints and to repeated work together.

    cost: seconds that a checkpoint takes from the job; mtbf: mean seconds between failures. Daly's higher-order optimum
    (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
    Computer Systems 22(3), 2006, equation 37): with x = cost / (2 mtbf)

        sqrt(2 cost mtbf) (1 + sqrt(x) / 3 + x / 9) - cost    for cost < 2 mtbf
        mtbf                                                  otherwise

    It does not depend on how long a restart takes. Failures are taken as a Poisson process.
    """
    if cost >= 2 * mtbf:
        return mtbf
    ratio = cost / (2 * mtbf)
    return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


def seconds_until_next(
    interval: Interval, schedule: Schedule, cost: float | None, spread: random.Random, first: bool = False
) -> float | None:
    """Seconds from the end of one checkpoint to the start of the next; None when the timer takes none.

    cost: measured seconds that a checkpoint takes from the job, None before the first. `auto` is daly(), not more often
    than schedule.max_overhead allows: cost / (cost + interval) stays at or below it.

    Jobs that start in the same second must not write in the same second for ever after. A jitter of some percent would
    need a hundred checkpoints to draw them apart, so the first checkpoint of an incarnation comes at any moment of the
    second half of its interval: never later than asked for, and not while the job is only loading. From then on each
    interval is longer or shorter by up to schedule.jitter, against jobs that fall into step. 0 switches both off.
    """
    if interval.kind in ("off", "manual"):
        return None
    if interval.seconds is not None:
        seconds = interval.seconds
    else:
        price = cost if cost is not None else _FIRST_AUTO_COST
        seconds = max(daly(price, schedule.mtbf), price / schedule.max_overhead - price)
    seconds = max(seconds, schedule.min_interval)
    if first and schedule.jitter:
        return max(seconds * spread.uniform(_EARLIEST_FIRST, 1), schedule.min_interval)
    return seconds * (1 + schedule.jitter * (2 * spread.random() - 1))
