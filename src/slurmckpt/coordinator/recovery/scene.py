"""What all parts of the recovery share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from slurmckpt.coordinator.checkpoints import Checkpointer
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.coordinator.notices import Notices
from slurmckpt.coordinator.step import Step, StepNumbers
from slurmckpt.errors import SlurmckptError
from slurmckpt.slurm.port import JobInfo, SlurmPort

log = logging.getLogger(__name__)

# An exit or a signal is held while Slurm is asked, and pod init passes it after 30 s: enough must be left to act.
ASK_SECONDS = 8.0


@dataclass(frozen=True)
class Scene:
    """One incarnation of a job. events: those that it recovers from. slurm: None when it cannot be asked."""

    incarnation: Incarnation
    steps: Mapping[str, Step]
    notices: Notices
    slurm: SlurmPort | None
    checkpointer: Checkpointer
    numbers: StepNumbers
    events: frozenset[str]

    @property
    def job_id(self) -> int:
        """Slurm's raw job id."""
        return self.incarnation.spec.job.job_id

    async def tell(self, text: str) -> None:
        """Into the job's output, its record and the log."""
        await self.note(text)
        await self.notices.to_running(self.steps.values(), text)

    async def note(self, text: str) -> None:
        """Into the job's record and the log."""
        log.warning("job %d: %s", self.job_id, text)
        with contextlib.suppress(SlurmckptError, OSError):
            await self.incarnation.journal.event(text)

    async def ask(self, seconds: float = ASK_SECONDS) -> JobInfo | None:
        """The job as Slurm sees it now; None when that cannot be known soon enough."""
        if self.slurm is None:
            return None
        try:
            return await asyncio.wait_for(self.slurm.job(self.job_id), seconds)
        except (SlurmckptError, asyncio.TimeoutError) as error:
            log.warning("job %d: Slurm does not say how it is: %s", self.job_id, error or "no answer")
            return None

    async def is_ending(self) -> bool:
        """Whether Slurm says that it is ending the job. When it does not say, the job goes on."""
        job = await self.ask()
        return job is not None and ("COMPLETING" in job.state or job.state.isdisjoint({"RUNNING", "SUSPENDED"}))

    async def unhealthy(self) -> str:
        """Why the job is ending anyway, so that nothing of it is to be restored in place; empty when it is healthy.

        Whatever ends a job or step on purpose kills its tasks, too. When in doubt nothing is restored.
        """
        job = await self.ask()
        if job is None:
            return "Slurm does not answer"
        if "RUNNING" not in job.state or "COMPLETING" in job.state:
            return f"the job is {'+'.join(sorted(job.state))}"
        if job.preempt_time:
            return "the job is being preempted"
        if job.time_limit is not None and 0 < job.end_time <= time.time():
            return "the job's time is up"
        return ""
