"""Bring the ranks of a cut to a boundary before they are frozen, and let them go after it.

What holds ranks at the boundary is undone in reverse order, however the cut ends. Pods without NCCL ranks need nothing
of it: there the freeze itself is the boundary.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from slurmckpt.capture.gate import boundary
from slurmckpt.capture.gate.boundary import Boundary, NoBoundary
from slurmckpt.capture.gate.region import GateError, Region
from slurmckpt.config import Gate
from slurmckpt.coordinator import gating
from slurmckpt.coordinator.choice import Skipped
from slurmckpt.coordinator.pod import Pod

log = logging.getLogger(__name__)

# Between two attempts, in seconds: programs that repeat themselves must not be met at the same place again.
_PAUSE_SECONDS = (0.2, 1.0)


class Quiesced:
    """Ranks at a boundary. since: time.monotonic() of when the first may have been held; 0.0 when none is."""

    def __init__(self, since: float = 0.0) -> None:
        self.since = since
        self._boundaries: list[Boundary] = []

    @property
    def graphs(self) -> bool:
        """Whether graphs hold operations of NCCL: only the lock tells then whether anything is half done."""
        return any(one.graphs for one in self._boundaries)

    def check(self) -> None:
        """To be asked when all ranks are frozen, for then it is exact: raises Skipped when one has gone on."""
        try:
            holds = all(one.still_holds() for one in self._boundaries)
        except GateError as error:
            raise Skipped(str(error)) from error
        if not holds:
            raise Skipped("NO_BOUNDARY: the ranks went on before they were frozen")

    def add(self, reached: Boundary) -> None:
        """It stands, too."""
        self._boundaries.append(reached)

    def release(self) -> None:
        """Let all ranks go. In the event loop's own thread: it takes no time, and cannot be cancelled."""
        for one in self._boundaries:
            try:
                one.release()
            except GateError as error:
                log.warning("a gate cannot be opened, and will open by itself: %s", error)
        self._boundaries.clear()


@contextlib.asynccontextmanager
async def quiesce(pods: Sequence[Pod], shm: Path, settings: Gate) -> AsyncIterator[Quiesced]:
    """The ranks of these pods stand at a boundary within. shm: the job's /dev/shm.

    Raises Skipped with NO_BOUNDARY and who is behind; all ranks run then.
    """
    with contextlib.ExitStack() as stack:
        regions: list[tuple[Pod, Region]] = []
        for pod in pods:
            # Without one, nothing of the pod uses a gate; or the user has removed it, and the lock has to do.
            with contextlib.suppress(GateError):
                regions.append((pod, stack.enter_context(Region.open(gating.path_of(shm, pod.step)))))
        quiesced = await _reach(regions, settings) if regions else Quiesced()
        try:
            yield quiesced
        finally:
            quiesced.release()


async def _reach(regions: Sequence[tuple[Pod, Region]], settings: Gate) -> Quiesced:
    """Several attempts. Raises Skipped."""
    for left in reversed(range(settings.attempts)):
        try:
            quiesced, missed = await _attempt(regions, settings.patience)
        except GateError as error:
            raise Skipped(str(error)) from error
        if missed is None:
            return quiesced
        if not left:
            raise Skipped(f"NO_BOUNDARY: {missed.reason}")
        log.info("%s; tries left: %d", missed.reason, left)
        await asyncio.sleep(random.uniform(*_PAUSE_SECONDS))
    raise AssertionError("there is at least one attempt")


async def _attempt(regions: Sequence[tuple[Pod, Region]], patience: float) -> tuple[Quiesced, NoBoundary | None]:
    """All pods at once; when one misses, or whoever asks is cancelled, all are let go."""
    quiesced, waiting = Quiesced(time.monotonic()), boundary.Patience(total=patience)

    async def reach(pod: Pod, region: Region) -> NoBoundary | None:
        answer = await boundary.close(region, gating.alive_in(pod), waiting)
        if isinstance(answer, NoBoundary):
            return answer
        # Here and not when all have come: who is cancelled before that must know of it.
        quiesced.add(answer)
        return None

    try:
        answers = await asyncio.gather(*(reach(*each) for each in regions), return_exceptions=True)
    except BaseException:
        quiesced.release()
        raise
    missed = [answer for answer in answers if answer is not None]
    if missed:
        quiesced.release()
    errors = [answer for answer in missed if isinstance(answer, BaseException)]
    if errors:
        raise errors[0]
    return quiesced, next((answer for answer in missed if isinstance(answer, NoBoundary)), None)
