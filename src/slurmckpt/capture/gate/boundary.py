"""Bringing ranks to a boundary: close the gate, wait until all that is enqueued is matched, open it whatever happens.

A boundary is told by two equal snapshots: all counters only rise, so each had its value from the first look at it to
the second, hence all of them at the moment between the two. From such a moment on nobody can enqueue anything: the gate
is closed, nobody is inside, nobody lags, and nobody has leave to go on.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slurmckpt.capture.gate import layout
from slurmckpt.capture.gate.judge import Alive, Behind, Verdict, judge
from slurmckpt.capture.gate.region import GateError, Region

# For so long a gate stays closed when its coordinator has died; a sign of life comes several times as often.
LEASE_SECONDS = 5.0
_BEAT_SECONDS = 0.5
_LOOK_SECONDS = 0.004


@dataclass(frozen=True)
class Patience:
    """Seconds. stall: without progress until one operation of a held rank is let through (t1). total: until the attempt
    is given up (t2)."""

    stall: float = 0.25
    total: float = 10.0


@dataclass(frozen=True)
class NoBoundary:
    """The ranks could not be brought to a boundary; the gate is open again. behind: those that others waited for."""

    reason: str
    behind: Sequence[Behind] = field(default_factory=tuple)


class Closing:
    """One request: begin(), then step() until it says how it ended. Never waits, so that a test can be its clock."""

    def __init__(self, region: Region, alive: Alive, patience: Patience, lease: float = LEASE_SECONDS) -> None:
        self._region = region
        self._alive = alive
        self._patience = patience
        self._lease = lease
        self._beats = 0
        self._grants: Counter[int] = Counter()
        self._began = self._moved = 0.0
        self._before: object = None
        self.epoch = 0
        # At the boundary: whether graphs hold operations, whose replays nobody counts.
        self.graphs = False

    def begin(self, now: float) -> None:
        """Close the gate. now: seconds of any clock. Raises GateError."""
        snapshot = self._region.snapshot()
        header = snapshot.header
        # 0 is what a new region has as expired.
        self.epoch = (max(header.epoch, header.expired) + 1) & 0xFFFFFFFF or 1
        for member in snapshot.members:
            if member.granted != member.taken:
                self._region.write(member.granted_at, member.taken)
        self._region.write(layout.WIDE_AT, 0)
        self._region.write(layout.LEASE_AT, int(self._lease * 1000))
        self._region.write(layout.EPOCH_AT, self.epoch)
        self._region.write(layout.CLOSED_AT, 1)
        self._began = self._moved = now

    def step(self, now: float) -> bool | NoBoundary:
        """True: a boundary, the gate stays closed. False: not yet. NoBoundary: given up, the gate is open.

        Raises GateError.
        """
        self.beat()
        snapshot = self._region.snapshot()
        if not _is_closed(snapshot.header, self.epoch):
            return self._give_up(Verdict(["the gate was opened from inside the pod"]))
        verdict = judge(snapshot, self._alive)
        current = _counters(snapshot)
        stands = current == self._before
        self._before = current
        if stands and verdict.is_boundary:
            leave = [member for member in snapshot.members if member.granted != member.taken]
            if not leave:
                self.graphs = verdict.graphs
                return True
            # Somebody went on before he saw that he may: he must not come back to it later.
            for member in leave:
                self._region.write(member.granted_at, member.taken)
            self._before = None
        elif not stands:
            self._moved = now
        elif now - self._moved >= self._patience.stall:
            self._release_one(snapshot, verdict)
            self._moved = now
        return self._give_up(verdict) if now - self._began >= self._patience.total else False

    def open(self) -> None:
        """Open the gate: those who are held go on. May be called at any time, and again. Raises GateError."""
        self._region.open_gate()

    def still_holds(self) -> bool:
        """Whether the boundary stands: exact when all ranks are frozen. Raises GateError."""
        snapshot = self._region.snapshot()
        return _is_closed(snapshot.header, self.epoch) and judge(snapshot, self._alive).is_boundary

    def beat(self) -> None:
        """A sign of life: without one for the time of the lease, the gate opens by itself. Raises GateError."""
        self._beats += 1
        self._region.write(layout.BEAT_AT, self._beats)

    def _release_one(self, snapshot: layout.Snapshot, verdict: Verdict) -> None:
        """Somebody on the way waits, on the CPU, for somebody who is held.

        From now on each thread goes on for all communicators of its process; and one operation is let through, of the
        one that was let through least often.
        """
        if not snapshot.header.wide:
            self._region.write(layout.WIDE_AT, 1)
        waiting = [member for member in verdict.held if member.granted == member.taken]
        if waiting:
            chosen = min(
                waiting, key=lambda member: (self._grants[member.index], member.collectives + member.transfers)
            )
            self._grants[chosen.index] += 1
            self._region.write(chosen.granted_at, chosen.granted + 1)

    def _give_up(self, verdict: Verdict) -> NoBoundary:
        self.open()
        reason = verdict.reason() or "the ranks did not come to rest"
        return NoBoundary(f"no boundary within {self._patience.total:g} s: {reason}", tuple(verdict.behind))


class Boundary:
    """The ranks stand at a boundary, until release(). A thread gives the signs of life."""

    def __init__(self, closing: Closing) -> None:
        self._closing = closing
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="gate", daemon=True)
        self._thread.start()

    @property
    def graphs(self) -> bool:
        """Whether graphs hold operations of NCCL: their replays call nothing, so what runs is not known for sure."""
        return self._closing.graphs

    def still_holds(self) -> bool:
        """Whether nobody has gone on. To be asked when the ranks are frozen: it is exact then. Raises GateError."""
        return self._closing.still_holds()

    def release(self) -> None:
        """Open the gate. Raises GateError: then it opens by itself, after the lease."""
        self._over.set()
        self._thread.join()
        self._closing.open()

    def _beat(self) -> None:
        while not self._over.wait(_BEAT_SECONDS):
            try:
                self._closing.beat()
            except GateError:
                return


async def close(
    region: Region, alive: Alive, patience: Patience, clock: Callable[[], float] = time.monotonic
) -> Boundary | NoBoundary:
    """Close the gate and wait for a boundary. Whatever goes wrong, the gate is open afterwards. Raises GateError."""
    closing = Closing(region, alive, patience)
    try:
        closing.begin(clock())
        while (answer := closing.step(clock())) is False:
            await asyncio.sleep(_LOOK_SECONDS)
        return answer if isinstance(answer, NoBoundary) else Boundary(closing)
    except BaseException:
        closing.open()
        raise


def _is_closed(header: layout.Header, epoch: int) -> bool:
    return header.closed and header.epoch == epoch and header.expired != epoch


def _counters(snapshot: layout.Snapshot) -> object:
    """Everything that only rises."""
    return (
        [
            (
                one.index,
                one.birth,
                one.state,
                bool(one.held),
                one.entries,
                one.exits,
                one.collectives,
                one.transfers,
                one.deferred,
                one.taken,
            )
            for one in snapshot.members
        ],
        snapshot.pairs,
    )
