"""A coordinator whose job has left this node, and whom no epilog has told.

slurmctld sends no epilog after a job that ended while its node was cut off; and an epilog can be killed, or find no
Python. Slurm is asked only while nothing of the job runs here; what runs is the fence's business (fencing by lease).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from slurmckpt.coordinator.spec import JobSpec
from slurmckpt.coordinator.step import Step
from slurmckpt.errors import NoSuchJobError, SlurmError
from slurmckpt.slurm.port import SlurmPort

log = logging.getLogger(__name__)

_LOOK_SECONDS = 20.0
# A single look may fall between two states of a job that is starting.
_LOOKS = 2
_HERE = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
)


async def left_behind(spec: JobSpec, steps: dict[str, Step], slurm: SlurmPort) -> None:
    """Return when the job has certainly left this node: Slurm has said so twice while none of its steps ran here."""
    gone = 0
    while gone < _LOOKS:
        await asyncio.sleep(_LOOK_SECONDS)
        if _any_runs(steps.values()):
            gone = 0
            continue
        try:
            gone = 0 if await is_here(spec, slurm) else gone + 1
        except SlurmError:
            continue  # it does not answer, which says nothing
    log.warning("job %d: it has left this node for Slurm, and no epilog came", spec.job.job_id)


async def is_here(spec: JobSpec, slurm: SlurmPort) -> bool:
    """Whether this incarnation is on its node for Slurm. Raises SlurmError when Slurm does not say."""
    try:
        job = await slurm.job(spec.job.job_id)
    except NoSuchJobError:
        return False
    return bool(job.state & _HERE) and spec.node in job.nodes and job.restart_count == spec.restart_count


def _any_runs(steps: Iterable[Step]) -> bool:
    """Whether a step runs in its pod, or waits for its tasks or its pod."""
    return any(step.running or not step.closed for step in steps)
