"""Images of a user's other jobs that ended with nobody there to remove them.

Their coordinator was killed, or they were cancelled while they waited for a node. The next job of the same user that
ends asks Slurm about them, once a day.
"""

from __future__ import annotations

import logging

from slurmckpt.errors import NoSuchJobError, SlurmckptError
from slurmckpt.slurm import states
from slurmckpt.slurm.port import SlurmPort
from slurmckpt.store import retention
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore

log = logging.getLogger(__name__)


async def sweep(store: JobStore, files: UserFiles, slurm: SlurmPort) -> None:
    """Remove the images of jobs that are over, or that Slurm does not know any more: it can requeue neither.

    store: of the job that has just ended. Raises StoreError; Slurm's silence ends it without a word.
    """
    for other in await retention.lingering(store, files):
        try:
            over = states.over((await slurm.job(other.job.job_id)).state)
        except NoSuchJobError:
            over = True
        except SlurmckptError:
            return
        if over:
            log.info("job %d has ended with nobody there: its images are removed", other.job.job_id)
            await retention.remove_all(other, files)
