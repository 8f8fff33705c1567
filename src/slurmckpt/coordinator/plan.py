"""Which checkpoint this incarnation goes on from: the newest that is whole, ours, and fits this node."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from slurmckpt.errors import Refused, SlurmckptError
from slurmckpt.store import transfer
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore
from slurmckpt.store.manifest import Manifest, StepImage

log = logging.getLogger(__name__)
T = TypeVar("T")

_AGAIN_SECONDS = 1.0


@dataclass
class Plan:
    """A verified checkpoint in staging. open_steps: captured steps not restored in this incarnation yet."""

    manifest: Manifest
    directory: Path
    open_steps: set[str] = field(default_factory=set)
    filled_shm: bool = False
    filled_carried: bool = False

    def image(self, step: str) -> StepImage | None:
        """The image of a step that is still to be restored."""
        if step not in self.open_steps:
            return None
        return next((image for image in self.manifest.steps if image.step == step), None)

    @property
    def runs_script_again(self) -> bool:
        """Whether the batch script is not part of it and so runs from its top."""
        return all(image.step != "batch" for image in self.manifest.steps)

    def discard(self) -> None:
        """Free the staging space."""
        shutil.rmtree(self.directory, ignore_errors=True)


async def _once_more(ask: Callable[[], Awaitable[T]]) -> T:
    """What the store answers; when that is an error of its file system, what it answers a moment later.

    A file server that restarts, or that has just moved a file, gives errors (EIO, ESTALE, ENOENT) that are none of the
    checkpoint's, and without it work is lost. What is read and does not fit stays so.
    """
    try:
        return await ask()
    except (SlurmckptError, OSError) as error:
        if not isinstance(error, OSError) and not isinstance(error.__cause__, OSError):
            raise
        log.warning("the store is asked once more: %s", error)
    await asyncio.sleep(_AGAIN_SECONDS)
    return await ask()


class Planner:
    """Goes through a job's checkpoints from the newest to the oldest. refused: why those before were not used.

    removed: when and by whom the job's checkpoints were removed, as the end of a sentence. unknown: whether the store
    knows nothing of an earlier incarnation.
    """

    def __init__(
        self, store: JobStore, files: UserFiles, key: bytes, staging: Path, check: Callable[[Manifest], str]
    ) -> None:
        """check: gives what does not fit this node, or an empty text."""
        self._store = store
        self._files = files
        self._key = key
        self._staging = staging
        self._check = check
        self._left: list[int] | None = None
        self.found = 0
        self.removed = ""
        self.unknown = False
        self.refused: list[str] = []

    def again(self, staging: Path) -> Planner:
        """From the newest on again, with another place in staging."""
        return Planner(self._store, self._files, self._key, staging, self._check)

    async def next(self) -> Plan | None:
        """The newest checkpoint not tried yet that can be used, or None."""
        if self._left is None:
            self._left = sorted(await _once_more(lambda: self._files.run(self._store.sequence_numbers)))
            self.found = len(self._left)
        while self._left:
            seq = self._left.pop()
            directory = self._staging / "restore" / str(seq)
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(mode=0o700, parents=True)
            try:
                manifest = await self._fetch(seq, directory)
                difference = await self._files.run(self._check, manifest)
                if difference:
                    raise Refused(difference)
            except (SlurmckptError, OSError) as error:
                shutil.rmtree(directory, ignore_errors=True)
                self.refuse(seq, str(error))
                continue
            return Plan(manifest, directory, {image.step for image in manifest.steps})
        return None

    async def _fetch(self, seq: int, directory: Path) -> Manifest:
        return await _once_more(lambda: transfer.fetch(self._store, seq, self._files, self._key, directory))

    def refuse(self, seq: int, reason: str) -> None:
        """Remember that a checkpoint cannot be used."""
        log.warning("checkpoint #%d is refused: %s", seq, reason)
        self.refused.append(f"#{seq}: {reason}")

    def cold_start_reason(self) -> str:
        """Why no checkpoint fits, for the job's own output."""
        if not self.found and self.removed:
            return f"its checkpoints were removed {self.removed}"
        if not self.found and self.unknown:
            return (
                f"nothing of the job's earlier runs is in the store: {self._store.dir} was removed, is not shared by "
                "all nodes, or they never began, or ran without checkpoints"
            )
        if not self.found:
            return "no checkpoint had been taken"
        return "no checkpoint fits: " + "; ".join(self.refused)
