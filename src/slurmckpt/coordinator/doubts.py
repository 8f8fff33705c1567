"""A refusal counts when two looks agree on it.

The processes of a job run on while they are looked at, and may be met in the middle of anything: one that ends has half
of a pipe, one that begins has what its parent had. CRIU stops them one after the other and meets the same. What was a
moment's is gone when it is looked at once more; what stays costs one more look.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from slurmckpt.coordinator.skips import kind

# Between two looks. A process on a busy machine may stay in the middle of something for as long as others have the CPU.
PAUSE_SECONDS = 0.3
# How often the same must be met of always other processes: a job that starts very many may be unlucky a few times.
_TIMES = 4
# A refusal that takes longer has the last word: the dump of a large job is not worth a repetition.
_PATIENCE_SECONDS = 5.0


class Doubts:
    """What speaks against one checkpoint, as far as it has been looked at."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._look = 0
        self._seen: defaultdict[str, set[int]] = defaultdict(set)

    def look_again(self) -> None:
        """Another look begins. The first one needs no word."""
        self._look += 1

    def settled(self, reasons: Sequence[str], is_moment: bool = False) -> list[str]:
        """Those of these reasons that count, in their order: seen before in the same words, or often, or late.

        The same look may ask more than once. is_moment: the same words are no sign that it is the same.
        """
        late = self._clock() - self._began > _PATIENCE_SECONDS
        for one in (*reasons, *map(kind, reasons)):
            self._seen[one].add(self._look)
        twice = _TIMES if is_moment else 2
        return [one for one in reasons if late or len(self._seen[one]) >= twice or len(self._seen[kind(one)]) >= _TIMES]
