"""Writes down what happens to the job, for `slurmckpt status`. A record that cannot be written never stops anything."""

from __future__ import annotations

import logging
import time

from slurmckpt.coordinator.recovery.events import LOST
from slurmckpt.coordinator.spec import JobSpec
from slurmckpt.errors import SlurmckptError, one_line
from slurmckpt.slurm.port import JobInfo
from slurmckpt.store import lease, record
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore
from slurmckpt.store.manifest import Manifest
from slurmckpt.store.record import Attempt, CheckpointNote, Record, SkippedNote, StepNote

log = logging.getLogger(__name__)

# Notes of older ones are forgotten: a record is written anew with each checkpoint, and read only up to a size.
_MAX_CHECKPOINTS = 1000
_MAX_STEPS = 100
# Slurm takes a kilobyte and more as a job's name; here it is one column of a table.
_MAX_NAME = 64


class Journal:
    """The record of the job, with this incarnation's attempt as its last."""

    def __init__(self, store: JobStore, files: UserFiles, kept: Record, attempt: Attempt) -> None:
        self._store = store
        self._files = files
        self._record = kept
        self._attempt = attempt

    @classmethod
    async def open(
        cls,
        store: JobStore,
        files: UserFiles,
        spec: JobSpec,
        epoch: int,
        job: JobInfo | None = None,
        interval: str = "",
    ) -> Journal:
        """Begin this incarnation's attempt. job: what Slurm says of it. interval: of its checkpoints."""
        kept = await record.load(store, files)
        if job is not None:
            kept.name, kept.array = one_line(job.name)[:_MAX_NAME], job.array
        kept.skipped = None
        kept.interval = interval
        cls.mark_lost(kept)
        attempt = Attempt(epoch=epoch, node=spec.node, started=time.time())
        kept.attempts.append(attempt)
        journal = cls(store, files, kept, attempt)
        await journal._save()
        return journal

    @property
    def began(self) -> int:
        """When the job's first incarnation that is known began, ns since 1970."""
        return int(self._record.attempts[0].started * 1e9)

    @property
    def follows_a_lost_one(self) -> bool:
        """Whether the incarnation before was on another node, and nobody saw its end there; or may have been.

        The latter where the record is gone, but by the epoch this incarnation is not the first.
        """
        before = self._record.attempts[:-1]
        if not before:
            return self._attempt.epoch > 1
        return before[-1].ended is None and before[-1].node != self._attempt.node

    @property
    def knows_earlier_ones(self) -> bool:
        """Whether the record tells of incarnations before this one."""
        return len(self._record.attempts) > 1

    @staticmethod
    def mark_lost(kept: Record) -> None:
        """Attempts whose end nobody wrote: their nodes died or lost their network."""
        for lost in [attempt for attempt in kept.attempts if attempt.ended is None]:
            lost.outcome = LOST
            for step in lost.steps:
                step.state = "lost" if step.state == "running" else step.state

    @property
    def former_nodes(self) -> set[str]:
        """Where the incarnations before this one were."""
        return {attempt.node for attempt in self._record.attempts[:-1]}

    @property
    def removed(self) -> str:
        """When and by whom the job's checkpoints were removed, as the end of a sentence; "" when they were not."""
        return self._record.removed or ""

    @property
    def without_progress(self) -> int | None:
        """The checkpoint that this incarnation was restored from, when it has not taken a newer one; else None."""
        taken = any(note.epoch == self._attempt.epoch for note in self._record.checkpoints)
        return None if taken else self._attempt.restored_from

    @property
    def last_outcome(self) -> str | None:
        """How the incarnation before this one ended, as far as that was written down."""
        return self._record.attempts[-2].outcome if len(self._record.attempts) > 1 else None

    async def gone(self, why: str) -> None:
        """The job's checkpoints are being removed. why: the end of a sentence."""
        self._record.removed = why
        await self._save()

    async def restored(self, manifest: Manifest, seconds: float, refused: list[str]) -> None:
        """A step came back from this checkpoint."""
        before = [attempt.ended for attempt in self._record.attempts[:-1] if attempt.epoch == manifest.epoch]
        self._attempt.restored_from = manifest.seq
        self._attempt.restored_seconds = (self._attempt.restored_seconds or 0.0) + seconds
        self._attempt.refused = list(refused)
        if before and before[-1] is not None:
            self._attempt.lost_seconds = max(0.0, before[-1] - manifest.created)
        await self._save()

    async def cold_start(self, reason: str, refused: list[str]) -> None:
        """Nothing is restored, for this reason."""
        self._attempt.cold_start = reason
        self._attempt.refused = list(refused)
        await self._save()

    async def step(self, name: str, ntasks: int, state: str, status: int | None) -> None:
        """A step has this state now."""
        note = next((note for note in self._attempt.steps if note.step == name), None)
        if note is None:
            note = StepNote(name, ntasks)
            self._attempt.steps.append(note)
            # A script may start very many. Each is written twice, with all that are noted.
            steps = self._attempt.steps
            over = [old for old in steps if old.state == "ended" and old.step != "batch"]
            for old in over[: max(0, len(steps) - _MAX_STEPS)]:
                steps.remove(old)
        note.state, note.status = state, status
        await self._save()

    async def checkpoint(self, manifest: Manifest, capture_seconds: float, commit_seconds: float) -> None:
        """A checkpoint is committed."""
        self._record.checkpoints.append(
            CheckpointNote(
                seq=manifest.seq,
                epoch=manifest.epoch,
                time=manifest.created,
                bytes=sum(file.size for file in manifest.files),
                stored_bytes=sum(file.stored_size for file in manifest.files),
                freeze_seconds=manifest.freeze_seconds,
                capture_seconds=capture_seconds,
                commit_seconds=commit_seconds,
                steps=[image.step for image in manifest.steps],
                node=manifest.node,
            )
        )
        del self._record.checkpoints[:-_MAX_CHECKPOINTS]
        self._record.removed = None
        await self._save()

    async def skipped(self, note: SkippedNote | None) -> None:
        """Checkpoints are not taken now, for this reason; None when they are."""
        self._record.skipped = note
        await self._save()

    async def event(self, text: str) -> None:
        """Something worth knowing happened."""
        self._record.add_event(time.time(), text)
        await self._save()

    async def ended(self, outcome: str) -> None:
        """The incarnation is over."""
        self._attempt.ended = self._attempt.ended or time.time()
        self._attempt.outcome = outcome
        await self._save()

    async def stopped(self) -> None:
        """The tasks have ended or are being ended; how the job ended is not known yet."""
        self._attempt.ended = time.time()
        await self._save()

    async def _save(self) -> None:
        try:
            # A newer incarnation has its own copy, and ours would overwrite what it has written.
            await lease.check_claim(self._store, self._files, self._attempt.epoch)
            await record.save(self._store, self._files, self._record)
        except (SlurmckptError, OSError) as error:
            log.warning("the job's record cannot be written: %s", error)
