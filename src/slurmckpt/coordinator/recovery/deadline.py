"""What only Slurm knows of a job's end: its time limit, and that it is being preempted.

A job that would reach its time limit is requeued before, after a last checkpoint, and so goes on as a chain of runs
under one job id. Slurm counts only failed starts and failed nodes against MaxBatchRequeue, not a requeue like this one;
but it is the site's limit for requeues that nobody asked for by hand, so the chain keeps to it.
"""

from __future__ import annotations

import asyncio
import logging
import time

from slurmckpt.coordinator.choice import Skipped
from slurmckpt.coordinator.recovery.preemption import Preemption
from slurmckpt.coordinator.recovery.scene import Scene
from slurmckpt.errors import SlurmckptError
from slurmckpt.slurm.port import JobInfo
from slurmckpt.store.lease import LeaseLost
from slurmckpt.store.manifest import Manifest
from slurmckpt.units import format_seconds

log = logging.getLogger(__name__)

# How often at most to look at a job whose end is far: `scontrol update TimeLimit=` can bring it nearer.
_FAR_SECONDS = 300.0
_NEAR_SECONDS = 1.0
# A checkpoint is given up, and the job requeued with what it has, so long before the time limit.
_REQUEUE_SECONDS = 5.0
_RETRY_SECONDS = 2.0
# Of the grace time: so often at least a preemption must be looked for to be found early in it.
_GRACE_PARTS = 4
_MAX_BATCH_REQUEUE = 5  # Slurm's default, DEFAULT_MAX_BATCH_REQUEUE in its read_config.h


class Deadline:
    """Watches one job. started: its first step has begun."""

    def __init__(self, scene: Scene, preemption: Preemption) -> None:
        self.started = asyncio.Event()
        self._scene = scene
        self._preemption = preemption
        self._recover = scene.incarnation.settings.recover
        self._configuration: dict[str, str] = {}
        self._preemptable = False
        self._grace: float | None = None
        self._said = False

    async def run(self) -> None:
        """Watch, until the job has been requeued or this is cancelled."""
        if not self._scene.events & {"preempt", "timelimit"} or self._scene.slurm is None:
            return
        await self.started.wait()
        while not await self._ask_for_the_rules():
            await asyncio.sleep(self._recover.look_every)
        while True:
            job = await self._scene.ask()
            pause = self._recover.look_every
            if job is not None and "RUNNING" in job.state:
                if self._preemptable and job.preempt_time:
                    await self._preemption.take_last_checkpoint()
                    return
                if "timelimit" in self._scene.events and job.time_limit is not None and await self._reached(job):
                    return
                pause = self._pause(job)
            await asyncio.sleep(pause)

    async def _ask_for_the_rules(self) -> bool:
        """What does not change while the job runs. False when Slurm does not answer."""
        slurm = self._scene.slurm
        assert slurm is not None
        try:
            self._configuration = await slurm.config()
            kind = self._configuration.get("PreemptType", "").removeprefix("preempt/")
            self._preemptable = "preempt" in self._scene.events and kind not in ("", "none")
            if "preempt" in self._scene.events and not self._preemptable:
                await self._preemption.rule_out()
            if self._preemptable:
                job = await slurm.job(self._scene.job_id)
                # With preempt/qos the grace time is the QOS's, which only Slurm's database tells.
                self._grace = await slurm.grace_time(job.partition) if kind == "partition_prio" else None
        except SlurmckptError as error:
            log.warning("job %d: Slurm does not tell its rules: %s", self._scene.job_id, error)
            return False
        return True

    def _pause(self, job: JobInfo) -> float:
        """Seconds until Slurm is asked again."""
        pause = _FAR_SECONDS
        if self._preemptable and self._grace != 0:
            pause = self._recover.look_every
            if self._grace is not None:
                pause = min(pause, self._grace / _GRACE_PARTS)
        if "timelimit" in self._scene.events and job.time_limit is not None:
            # Half of what is left, again and again: exact at the end, and cheap before.
            pause = min(pause, (self._act_at(job) - time.time()) / 2)
        return max(pause, _NEAR_SECONDS)

    def _act_at(self, job: JobInfo) -> float:
        """When the last checkpoint has to begin, in seconds since 1970."""
        lead = self._recover.margin + 2 * max(self._scene.checkpointer.seconds, default=0.0)
        # A job must have time to get on between two requeues, whatever the margin is.
        return job.end_time - min(lead, (job.end_time - job.start_time) / 2)

    def _why_no_chain(self, job: JobInfo) -> str:
        """Why the job cannot be requeued at its time limit, or an empty text."""
        if not job.requeue:
            return "it may not be requeued (--no-requeue, or JobRequeue=0 in slurm.conf)"
        text = self._configuration.get("MaxBatchRequeue", "")
        most = int(text) if text.isdecimal() else _MAX_BATCH_REQUEUE
        if job.restart_count >= most:
            return f"it has been requeued {job.restart_count} times, and MaxBatchRequeue={most} allows no more"
        return ""

    async def _reached(self, job: JobInfo) -> bool:
        """Whether the time limit is so near that the job was requeued, or that nothing more can be done."""
        assert job.time_limit is not None
        why_not = self._why_no_chain(job)
        if why_not and not self._said:
            self._said = True
            limit = format_seconds(job.time_limit * 60)
            text = f"the time limit ({limit}) will end this job for good: {why_not}"
            # That nothing requeues it the job has been told at its start.
            await (self._scene.tell if job.requeue else self._scene.note)(text)
        if time.time() < self._act_at(job):
            return False
        if why_not:
            if job.requeue:
                # A last checkpoint all the same: its owner can requeue it by hand.
                await self._last_checkpoint(job)
            return True
        return await self._requeue(job)

    async def _requeue(self, job: JobInfo) -> bool:
        """False when the time limit has moved meanwhile."""
        scene = self._scene
        manifest = await self._last_checkpoint(job)
        newest = scene.checkpointer.newest
        if manifest is None and newest is not None and newest.epoch == scene.incarnation.epoch:
            manifest = newest
        now = await scene.ask()
        if now is None:
            now = job
        if "RUNNING" not in now.state or now.preempt_time:
            return True
        if now.time_limit is None or time.time() < self._act_at(now):
            return False
        if manifest is None:
            # Without one, the next run would be this one over again, and the one after it, too.
            await scene.tell("the time limit will end this job for good: no checkpoint could be taken before it")
            return True
        try:
            assert scene.slurm is not None
            await scene.note(f"requeued before its time limit, to go on from #{manifest.seq}")
            await scene.slurm.requeue(scene.job_id)
        except SlurmckptError as error:
            await scene.tell(f"the time limit will end this job for good: it cannot be requeued: {error}")
        return True

    async def _last_checkpoint(self, job: JobInfo) -> Manifest | None:
        """Try until there is one, or no time any more."""
        while True:
            left = job.end_time - _REQUEUE_SECONDS - time.time()
            if left <= 0:
                return None
            try:
                return await asyncio.wait_for(self._scene.checkpointer.take(), left)
            except (Skipped, asyncio.TimeoutError):
                await asyncio.sleep(_RETRY_SECONDS)
            except LeaseLost:
                return None
