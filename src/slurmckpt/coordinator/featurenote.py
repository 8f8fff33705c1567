"""Tells the controller which node feature a restore of this job needs: the requeue hook cannot read the store."""

from __future__ import annotations

import asyncio
import logging

from slurmckpt.errors import SlurmckptError
from slurmckpt.slurm import admincomment
from slurmckpt.slurm.port import SlurmPort

log = logging.getLogger(__name__)

# What takes longer is given up until the next checkpoint.
_SECONDS = 5.0


class FeatureNote:
    """The note in one job's AdminComment. slurm: None where nobody can be told."""

    def __init__(self, slurm: SlurmPort | None, job_id: int, feature: str) -> None:
        self._slurm = slurm
        self._job_id = job_id
        self._feature = feature
        self._under_way: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """See to it that it is there, without waiting. One that is under way counts for this, too.

        To be called after each checkpoint: the comment is the site's as well, and whoever writes something else there
        takes our word away.
        """
        if self._slurm is not None and (self._under_way is None or self._under_way.done()):
            self._under_way = asyncio.create_task(self._note(self._slurm))

    async def settled(self) -> None:
        """Wait until none is under way: 5 s at most."""
        if self._under_way is not None:
            await asyncio.wait([self._under_way])

    async def _note(self, slurm: SlurmPort) -> None:
        try:
            await asyncio.wait_for(self._write(slurm), _SECONDS)
        except asyncio.TimeoutError:
            log.warning("job %d: the node feature cannot be noted: Slurm does not answer", self._job_id)
        except (SlurmckptError, OSError) as error:
            log.warning("job %d: the node feature cannot be noted: %s", self._job_id, error)

    async def _write(self, slurm: SlurmPort) -> None:
        job = await slurm.job(self._job_id)
        comment = admincomment.merge(job.admin_comment, self._feature)
        if comment != job.admin_comment:
            await slurm.set_admin_comment(self._job_id, comment)
