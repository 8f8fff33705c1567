"""Two incarnations of a job never work at once: the one given up for dead notices, the new one waits until it has.

A node that lost its network goes on running the job beside the incarnation that Slurm started elsewhere. Nothing tells
it; but each incarnation takes the lease, so the store knows. A store that does not answer, or answers with an error,
proves nothing: the job goes on (docs/architecture.md, "Fencing").
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable

from slurmckpt.coordinator.pod import Pod
from slurmckpt.errors import SlurmckptError
from slurmckpt.identity import JobIdentity
from slurmckpt.store import lease
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore

log = logging.getLogger(__name__)

# From the look that finds the lease lost to the end of the last rank.
_MARGIN_SECONDS = 2.0
_KILL_SECONDS = 1.5
# A node that is back registers within SlurmdTimeout (300 s), and is told then that the job is not its any more.
_SLURM_SECONDS = 900.0


async def watch(store: JobStore, epoch: int, period: float, lost: Callable[[str], Awaitable[None]]) -> None:
    """Look at the lease every `period` seconds; when it is lost, await `lost` with the reason, and return.

    In a thread of its own: that of the commits may be copying for minutes.
    """
    job = store.job
    files = UserFiles.for_user(job.uid, job.gid, os.getgrouplist(job.user, job.gid))
    try:
        await _watch(store, files, epoch, period, lost)
    finally:
        files.close(wait=False)


async def _watch(
    store: JobStore, files: UserFiles, epoch: int, period: float, lost: Callable[[str], Awaitable[None]]
) -> None:
    job_id = store.job.job_id
    silent = False
    while True:
        await asyncio.sleep(period)
        look = asyncio.ensure_future(lease.check_claim(store, files, epoch))
        try:
            answered, _ = await asyncio.wait([look], timeout=period)
            if not answered and not silent:
                log.warning("job %d: the store does not answer; whether the lease stands is not known", job_id)
                silent = True
            await look
            if silent:
                log.info("job %d: the store answers again, and the lease stands", job_id)
            silent = False
        except lease.LeaseLost as error:
            await lost(str(error))
            return
        except (SlurmckptError, OSError) as error:
            if not silent:
                log.warning("job %d: whether the lease stands is not known: %s", job_id, error)
            silent = True


async def wait_for_the_other(job: JobIdentity, period: float, taken: float) -> None:
    """Return when another node, if it still runs the job and reaches the store, has found its lease lost, and ended it.

    taken: time.monotonic() when the lease was taken here.
    """
    seconds = taken + period + _MARGIN_SECONDS - time.monotonic()
    if seconds > 0:
        log.info("job %d: the node before may still run it; it is given %.0f s to notice", job.job_id, seconds)
        await asyncio.sleep(seconds)


async def kill(pod: Pod) -> None:
    """End the ranks of a pod at once. Their shims stay where they can: for Slurm the tasks still run."""
    try:
        if pod.running:
            await asyncio.wait_for(pod.kill_tasks(), _KILL_SECONDS)
            return
    except (SlurmckptError, asyncio.TimeoutError) as error:
        log.warning("step %s: %s; its shims go with it", pod.step, str(error) or "no answer")
    pod.destroy()
    await pod.gone()


async def until_slurm_knows(pods: Iterable[Pod]) -> None:
    """Return when Slurm has ended these steps, or has had time enough to.

    slurmd remembers a batch script until slurmctld tells it to end the job, which it does when a node that comes back
    reports steps that it should not have. With no step left to report slurmd would take the job, when it comes back to
    the node, for a second copy, and Slurm drains the node ("Duplicate jobid"; launch_state.c, seen on 26.05).
    """
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.gather(*(pod.gone() for pod in pods)), _SLURM_SECONDS)
