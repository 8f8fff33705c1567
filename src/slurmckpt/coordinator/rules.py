"""What Slurm's rules for this job mean for its checkpoints: whether they are of any use, and what the user should know.

Asked once, beside the examination of the node, when the coordinator starts. Without an answer the job is checkpointed
as if all were well.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from slurmckpt.coordinator.spec import JobSpec
from slurmckpt.errors import SlurmckptError
from slurmckpt.slurm.port import JobInfo, SlurmPort

log = logging.getLogger(__name__)

# The job's first task waits for this; a controller that is slow must not hold it up.
_PATIENCE = 5.0

INTERACTIVE = "only batch jobs can be requeued and restored, and this one was started by salloc or srun"
HETEROGENEOUS = "heterogeneous jobs are not supported yet"
NO_REQUEUE = (
    "Slurm will not requeue this job (--no-requeue, or JobRequeue=0): its checkpoints will not bring it back after the "
    "loss of its node"
)
CANCELLED_WHEN_PREEMPTED = (
    "a preempted job is cancelled here (PreemptMode=CANCEL): its checkpoints will not bring it back"
)


class Pointless(SlurmckptError):
    """Checkpoints of this job could never be used. quiet: the user has been told elsewhere, or never asked for them."""

    def __init__(self, reason: str, quiet: bool) -> None:
        super().__init__(reason)
        self.quiet = quiet


@dataclass(frozen=True)
class Rules:
    """job: None when Slurm did not answer in time. remarks: lines for the job's output, each said once in its life."""

    job: JobInfo | None = None
    remarks: tuple[str, ...] = ()


async def look(slurm: SlurmPort | None, spec: JobSpec) -> Rules:
    """Ask Slurm, for at most 5 s. Raises nothing."""
    if slurm is None:
        return Rules()
    try:
        return await asyncio.wait_for(_look(slurm, spec), _PATIENCE)
    except asyncio.TimeoutError:
        log.warning("job %d: Slurm does not say within %g s how it may be requeued", spec.job.job_id, _PATIENCE)
    except SlurmckptError as error:
        log.warning("job %d: how it may be requeued is not known: %s", spec.job.job_id, error)
    except Exception:
        log.exception("job %d: how it may be requeued is not known", spec.job.job_id)
    return Rules()


def check(spec: JobSpec, rules: Rules) -> None:
    """Raises Pointless for a job whose checkpoints could never be used."""
    if spec.het_id:
        # Each component has a coordinator; the script runs in the first.
        raise Pointless(HETEROGENEOUS, quiet=spec.het_id != spec.job.job_id)
    if rules.job is not None and not rules.job.batch:
        # salloc and srun have said it when they were called (spank/allocator.c).
        raise Pointless(INTERACTIVE, quiet=True)


def several_nodes(spec: JobSpec) -> Pointless:
    """Why a job on several nodes has no checkpoints. Its first node says so, where its script runs."""
    return Pointless(
        f"jobs on several nodes are not supported yet, and this one has {spec.node_count}", quiet=not spec.leads
    )


async def _look(slurm: SlurmPort, spec: JobSpec) -> Rules:
    job = await slurm.job(spec.job.job_id)
    if spec.restart_count > 0 or not job.batch or spec.het_id:
        return Rules(job)
    remarks = []
    if not job.requeue:
        remarks.append(NO_REQUEUE)
    elif await _cancelled_when_preempted(slurm, job):
        remarks.append(CANCELLED_WHEN_PREEMPTED)
    return Rules(job, tuple(remarks))


async def _cancelled_when_preempted(slurm: SlurmPort, job: JobInfo) -> bool:
    """As slurm_job_preempt_mode() decides, but for a mode that a QOS brings: that is known to the database only."""
    settings = await slurm.config()
    kind = settings.get("PreemptType", "").removeprefix("preempt/")
    if kind in ("", "none"):
        return False
    modes = {each.name: each.preempt_mode for each in await slurm.partitions()} if kind == "partition_prio" else {}
    return "CANCEL" in (modes.get(job.partition) or settings.get("PreemptMode", "")).upper().split(",")
