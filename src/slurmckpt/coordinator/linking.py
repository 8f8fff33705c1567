"""Pods that need names in /dev/shm while they are dumped take turns: /dev/shm is one, and CRIU's names are the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from slurmckpt.capture import fileimages, linkremaps
from slurmckpt.coordinator.participant import Participant
from slurmckpt.errors import SlurmckptError


class LinkError(SlurmckptError):
    """The names that CRIU needs in /dev/shm could not be kept apart."""


class Linking:
    """The turns of one cut. shm: the job's /dev/shm. A participant alone needs no turn: CRIU's own names do."""

    def __init__(self, participants: Sequence[Participant], shm: Path) -> None:
        self._several = len(participants) > 1
        self._participants = participants
        self._shm = shm
        self._lock = asyncio.Lock()
        self._holder: Participant | None = None

    async def begin(self, participant: Participant) -> None:
        """Return when the dump of this participant may go on."""
        if self._several and participant.links:
            await self._lock.acquire()
            self._holder = participant

    async def written(self, participant: Participant) -> None:
        """Its image is written: keep its names apart from those of the next. Raises LinkError."""
        if self._several:
            try:
                participant.renamed = await asyncio.to_thread(
                    linkremaps.set_aside, self._shm, participant.images, participant.step.name
                )
            except (OSError, fileimages.ImageError) as error:
                raise LinkError(f"the names of shared memory cannot be kept apart: {error}") from error
            self.end(participant)

    def end(self, participant: Participant) -> None:
        """Let the next one have its turn, if this one has it."""
        if self._holder is participant:
            self._holder = None
            self._lock.release()

    async def finish(self) -> None:
        """After the cut: tell the images the names under which /dev/shm was saved. Raises LinkError."""
        try:
            for each in self._participants:
                if each.renamed:
                    await asyncio.to_thread(fileimages.rename_all, each.images, each.renamed)
        except (OSError, fileimages.ImageError) as error:
            raise LinkError(f"the names of shared memory cannot be changed in the image: {error}") from error

    def remove(self) -> None:
        """Remove the names: nobody else does."""
        for each in self._participants:
            linkremaps.remove(self._shm, each.renamed)
