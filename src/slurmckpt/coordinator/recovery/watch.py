"""The recovery of one incarnation: what is watched, and who is told of what."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from slurmckpt.coordinator.checkpoints import Checkpointer
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.coordinator.notices import Notices
from slurmckpt.coordinator.pod import Held, Pod
from slurmckpt.coordinator.recovery.crash import Attempts, Crashes, End
from slurmckpt.coordinator.recovery.deadline import Deadline
from slurmckpt.coordinator.recovery.ends import pipes_in_use
from slurmckpt.coordinator.recovery.hang import Hangs
from slurmckpt.coordinator.recovery.in_place import InPlace
from slurmckpt.coordinator.recovery.preemption import HeldSignal, Preemption
from slurmckpt.coordinator.recovery.scene import Scene
from slurmckpt.coordinator.step import Step, StepNumbers
from slurmckpt.errors import SlurmckptError
from slurmckpt.slurm.port import SlurmPort
from slurmckpt.store.manifest import Manifest

_LAST_ASK_SECONDS = 1.5


class Recovery:
    """Ties the events to the pods, the checkpoints and the job."""

    def __init__(
        self,
        incarnation: Incarnation,
        steps: Mapping[str, Step],
        notices: Notices,
        slurm: SlurmPort | None,
        checkpointer: Checkpointer,
        numbers: StepNumbers,
    ) -> None:
        self.events = incarnation.spec.recover(incarnation.settings)
        self._scene = Scene(incarnation, steps, notices, slurm, checkpointer, numbers, self.events)
        self._attempts = Attempts(incarnation.settings.recover.attempts)
        self.in_place = InPlace(self._scene)
        self._crashes = Crashes(self._scene, self.in_place, self._attempts)
        self._preemption = Preemption(self._scene)
        self._deadline = Deadline(self._scene, self._preemption)
        self._hangs = Hangs(self._scene, self.in_place, self._attempts)
        checkpointer.committed.append(self._committed)

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run beside the job, each until cancelled."""
        return [self._crashes.run(), self._preemption.run(), self._deadline.run(), self._hangs.run()]

    @property
    def preempted(self) -> bool:
        """Whether the job is known to have been preempted."""
        return self._preemption.noticed

    async def job_is_ending(self) -> bool:
        """Whether Slurm says so."""
        return await self._scene.is_ending()

    async def end(self) -> None:
        """The job is ending, and its epilog waits for us. Why it ends is forgotten by Slurm as soon as that has ended.

        A job that recovers from preemption has noticed it, or is restored in any case.
        """
        await self._preemption.end()
        if "preempt" not in self.events:
            job = await self._scene.ask(_LAST_ASK_SECONDS)
            self._preemption.noticed = job is not None and bool(job.preempt_time)

    async def watch(self, step: Step, pod: Pod) -> None:
        """A step has been started, or restored, in this pod."""
        checkpointer, plan = self._scene.checkpointer, self._scene.incarnation.plan
        if step.restored_from is not None and checkpointer.newest is None and plan is not None:
            checkpointer.newest = plan.manifest
        self.in_place.remember(step)
        self._crashes.watch(step)
        pod.on_held = lambda held: self._held(step, pod, held)
        await pod.hold("crash" in self.events, self._preemption.signals)
        if checkpointer.newest is not None:
            await self._keep_open([step])
        self._deadline.started.set()

    def _held(self, step: Step, pod: Pod, held: Held) -> None:
        if held.signal:
            self._preemption.take(HeldSignal(pod, held))
        else:
            self._crashes.take(End(step, pod, held.index, held.status))

    async def _committed(self, manifest: Manifest) -> None:
        names = {image.step for image in manifest.steps}
        await self._keep_open([step for step in self._scene.steps.values() if step.name in names])

    async def _keep_open(self, steps: Iterable[Step]) -> None:
        """From now on a crash can be undone, so the last writer of a pipe must not end it by its death."""
        if "crash" not in self.events:
            return
        for step in steps:
            if step.pod is not None and step.running:
                try:
                    in_use = await asyncio.to_thread(pipes_in_use, step.pod)
                except SlurmckptError:
                    continue
                if step.running:
                    step.streams.keep_open(in_use)
