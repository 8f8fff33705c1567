"""When the next group checkpoint is due."""

from __future__ import annotations

import math
import random

from slurmckpt.config import Schedule
from slurmckpt.units import Interval

_FIRST_AUTO_COST = 30.0  # seconds; replaced by the measured cost after the first checkpoint


def seconds_until_next(
    interval: Interval, schedule: Schedule, cost: float | None, spread: random.Random
) -> float | None:
    """Seconds from the end of one checkpoint to the start of the next; None when the timer takes none.

    cost: measured seconds that a checkpoint takes from the job, None before the first. `auto` is Young's first-order
    optimum sqrt(2 * cost * MTBF) (J. W. Young, CACM 17(9), 1974), not more often than schedule.max_overhead allows.
    The jitter keeps a thousand jobs from checkpointing in the same second.
    """
    if interval.kind in ("off", "manual"):
        return None
    if interval.seconds is not None:
        seconds = interval.seconds
    else:
        price = cost if cost is not None else _FIRST_AUTO_COST
        seconds = max(math.sqrt(2 * price * schedule.mtbf), price / schedule.max_overhead)
    seconds = max(seconds, schedule.min_interval)
    return seconds * (1 + schedule.jitter * (2 * spread.random() - 1))
