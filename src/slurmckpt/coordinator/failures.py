"""Where a user finds CRIU's own words about a dump or restore that has failed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from slurmckpt.capture.criu import CriuError
from slurmckpt.errors import SlurmckptError
from slurmckpt.store import faillogs

if TYPE_CHECKING:
    from slurmckpt.coordinator.incarnation import Incarnation

log = logging.getLogger(__name__)


async def reason(incarnation: Incarnation, what: str, error: BaseException) -> str:
    """Why it failed, and where CRIU's log lies if it was CRIU that failed. what: `dump` or `restore`."""
    text = str(error) or type(error).__name__
    said = _log_of(error)
    if said:
        try:
            path = await faillogs.keep(incarnation.store, incarnation.files, what, said)
            return f"{text} (CRIU's log: {path})"
        except (SlurmckptError, OSError) as failure:
            log.warning("job %d: %s", incarnation.spec.job.job_id, failure)
    return text


def _log_of(error: BaseException | None) -> str:
    """The log of the CRIU whose failure is the cause."""
    for _ in range(10):
        if isinstance(error, CriuError):
            return error.log
        error = error.__cause__ if error is not None else None
    return ""
