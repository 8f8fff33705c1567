"""Two incarnations of a job never work at once: the one given up for dead notices, the new one waits until it has.

A node that lost its network goes on running the job beside the incarnation that Slurm started elsewhere. Nothing tells
it; but each incarnation takes the lease, so the store knows. A store that does not answer, or answers with an error,
proves nothing: the job goes on (docs/architecture.md, "Fencing").
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable

from slurmckpt.errors import SlurmckptError
from slurmckpt.identity import JobIdentity
from slurmckpt.store import lease
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore

log = logging.getLogger(__name__)

# From the look that finds the lease lost to the end of the last rank.
_MARGIN_SECONDS = 2.0


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
