"""A simulated device of each rank: streams of kernels, each of which runs until those that it waits for run, too."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import NamedTuple


class Meeting(NamedTuple):
    """What a kernel takes part in: the same on all that must meet. number: the how manieth it is, on each of them."""

    kind: str
    communicator: int
    source: int
    target: int
    number: int


@dataclass
class Kernel:
    """meetings: with how many kernels in all each of them is complete."""

    meetings: dict[Meeting, int]


@dataclass
class Devices:
    """Of all ranks. A stream is known by its rank and its communicator (or None: one stream for all of a rank)."""

    streams: dict[tuple[int, int | None], deque[Kernel]] = field(default_factory=lambda: defaultdict(deque))
    _numbers: Counter[tuple[int, str, int, int, int]] = field(default_factory=Counter)
    _running: Counter[Meeting] = field(default_factory=Counter)

    def meeting(self, rank: int, kind: str, communicator: int, source: int = -1, target: int = -1) -> Meeting:
        """The next one of this rank."""
        key = (rank, kind, communicator, source, target)
        self._numbers[key] += 1
        return Meeting(kind, communicator, source, target, self._numbers[key])

    def enqueue(self, rank: int, stream: int | None, meetings: dict[Meeting, int]) -> None:
        queue = self.streams[rank, stream]
        queue.append(Kernel(meetings))
        if len(queue) == 1:
            self._running.update(meetings.keys())
        self.settle()

    def settle(self) -> None:
        """Let everything run that can."""
        moved = True
        while moved:
            moved = False
            for queue in self.streams.values():
                if queue and all(self._running[meeting] >= size for meeting, size in queue[0].meetings.items()):
                    # It is over for its peers as well: what they wait for has met, and stays so.
                    queue.popleft()
                    moved = True
                    if queue:
                        self._running.update(queue[0].meetings.keys())

    def is_idle(self, rank: int | None = None) -> bool:
        """Whether a rank, or every rank, has nothing under way."""
        return all(not queue for (owner, _), queue in self.streams.items() if rank in (None, owner))
