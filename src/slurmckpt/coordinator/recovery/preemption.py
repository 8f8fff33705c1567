"""A job that Slurm preempts and requeues: a last checkpoint within its grace time.

Slurm sends SIGCONT and SIGTERM to the job's steps at once and kills it when the grace time is over. SIGTERM is held
until the checkpoint is committed, as ranks that die of it could not be captured any more. The batch script itself gets
no signal: deadline.py asks for its sake.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from dataclasses import dataclass

from slurmckpt.coordinator.choice import Skipped
from slurmckpt.coordinator.pod import Held, Pod
from slurmckpt.coordinator.recovery.scene import Scene
from slurmckpt.slurm.port import JobInfo
from slurmckpt.store.lease import LeaseLost

log = logging.getLogger(__name__)

# As HOLD takes it: bit n-1 for signal n.
SIGNALS = 1 << (signal.SIGTERM - 1)

# Of the grace time: what is left to the ranks for an end of their own. And the most that pod init holds a signal.
_RESERVE_SECONDS = 5.0
_LONGEST_SECONDS = 86000.0


@dataclass(frozen=True)
class HeldSignal:
    """A signal that a task has not got yet."""

    pod: Pod
    held: Held


class Preemption:
    """Decides about the signals that are held. noticed: the job has been preempted.

    signals: those to hold, as HOLD takes them.
    """

    def __init__(self, scene: Scene) -> None:
        self.noticed = False
        # Without Slurm nobody could say whether a signal is a preemption.
        self.signals = SIGNALS if "preempt" in scene.events and scene.slurm is not None else 0
        self._scene = scene
        self._signals: asyncio.Queue[HeldSignal] = asyncio.Queue()
        self._last: asyncio.Task[None] | None = None

    def take(self, held: HeldSignal) -> None:
        """A signal is held."""
        self._signals.put_nowait(held)

    async def rule_out(self) -> None:
        """Nothing can preempt jobs here, so no signal needs to wait for a question to Slurm."""
        self.signals = 0
        await self._hold(None)

    async def run(self) -> None:
        """Decide, until cancelled."""
        while True:
            signals = [await self._signals.get()]
            try:
                job = await self._scene.ask()
                if job is not None and job.preempt_time and "RUNNING" in job.state:
                    await self._prolong(job)
                    await self.take_last_checkpoint()
            except Exception:  # a fault of ours must not keep a signal from the ranks
                log.exception("job %d", self._scene.job_id)
            while not self._signals.empty():
                signals.append(self._signals.get_nowait())
            for each in signals:
                await each.pod.pass_on(each.held)

    async def _prolong(self, job: JobInfo) -> None:
        """A large job's checkpoint may take most of the grace time: the signal can wait for it."""
        left = min(job.end_time - time.time() - _RESERVE_SECONDS, _LONGEST_SECONDS)
        await self._hold(left if left > _RESERVE_SECONDS else None)

    async def _hold(self, patience: float | None) -> None:
        for step in list(self._scene.steps.values()):
            if step.pod is not None and step.running:
                await step.pod.hold("crash" in self._scene.events, self.signals, patience)

    async def take_last_checkpoint(self) -> None:
        """The job is being preempted: take its last checkpoint, once, whoever notices it; return when that is over."""
        self.noticed = True
        if self._last is None:
            self._last = asyncio.create_task(self._take())
        await asyncio.shield(self._last)

    async def end(self) -> None:
        """The job is ending: give up what is under way."""
        if self._last is not None:
            self._last.cancel()
            await asyncio.gather(self._last, return_exceptions=True)

    async def _take(self) -> None:
        try:
            manifest = await self._scene.checkpointer.take()
        except (Skipped, LeaseLost) as error:
            await self._scene.note(f"preempted, without a last checkpoint: {error}")
        else:
            await self._scene.note(f"preempted; the last checkpoint is #{manifest.seq}")
