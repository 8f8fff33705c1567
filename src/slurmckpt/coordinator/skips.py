"""What keeps checkpoints from being taken: told once, counted each time.

A job whose checkpoints are refused runs on, and the reason would come with every interval. So its output, its events
and the log have it once; again only when it is another one, or when checkpoints have worked in between. How often it
came, and when last, is in the record (`slurmckpt status`).
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterable

from slurmckpt.coordinator.journal import Journal
from slurmckpt.coordinator.notices import Notices
from slurmckpt.coordinator.step import Step
from slurmckpt.errors import SlurmckptError, one_line
from slurmckpt.store.record import SkippedNote

log = logging.getLogger(__name__)

# Decimal, with a point, or hexadecimal with a digit in it.
_NUMBER = re.compile(r"\b(?:0x)?[0-9a-f]*\d[0-9a-f]*(?:\.\d+)?")


def kind(reason: str) -> str:
    """What two reasons have in common that differ in pids, sizes and the like only."""
    return _NUMBER.sub("#", reason)


class Skips:
    """The skipped checkpoints since the last one that was taken."""

    def __init__(self, job_id: int, journal: Journal, notices: Notices) -> None:
        self._job_id = job_id
        self._journal = journal
        self._notices = notices
        self._told: set[str] = set()
        self._note: SkippedNote | None = None

    async def one(self, reason: str, steps: Iterable[Step]) -> None:
        """A checkpoint was not taken, for this reason. steps: in whose output it is told."""
        reason, now, note = one_line(reason), time.time(), self._note
        if note is None or kind(note.reason) != kind(reason):
            self._note = SkippedNote(reason, since=now, last=now, times=1)
        else:
            self._note = SkippedNote(reason, note.since, now, note.times + 1)
        with contextlib.suppress(SlurmckptError, OSError):
            await self._journal.skipped(self._note)
        if kind(reason) in self._told:
            return
        self._told.add(kind(reason))
        log.warning("job %d: no checkpoint: %s", self._job_id, reason)
        text = f"checkpoint skipped: {reason}"
        with contextlib.suppress(SlurmckptError, OSError):
            await self._journal.event(text)
        self._notices.forget(text)
        await self._notices.to_running(steps, text)

    async def over(self) -> None:
        """A checkpoint was taken."""
        self._told.clear()
        if self._note is not None:
            self._note = None
            with contextlib.suppress(SlurmckptError, OSError):
                await self._journal.skipped(None)
