"""An incarnation that takes checkpoints, whose captures and commits do what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.capture import criu
from slurmckpt.config import Hooks, Settings
from slurmckpt.coordinator import group
from slurmckpt.coordinator.checkpoints import Checkpointer
from slurmckpt.coordinator.commands import Commands
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.coordinator.journal import Journal
from slurmckpt.coordinator.notices import Notices
from slurmckpt.coordinator.spec import JobSpec, Options
from slurmckpt.coordinator.step import Step, StepNumbers
from slurmckpt.identity import JobIdentity
from slurmckpt.slurm.port import SlurmPort
from slurmckpt.store import lease, retention, transfer
from slurmckpt.store.record import SkippedNote
from slurmckpt.units import Interval
from tests.unit.coordinator.parts import GID, UID, image


class FakeJournal:
    began = 1

    def __init__(self) -> None:
        self.events: list[str] = []
        self.committed: list[int] = []
        self.skips: list[SkippedNote | None] = []

    async def event(self, text: str) -> None:
        self.events.append(text)

    async def skipped(self, note: SkippedNote | None) -> None:
        self.skips.append(note)

    async def checkpoint(self, manifest: Any, capture_seconds: float, commit_seconds: float) -> None:
        self.committed.append(manifest.seq)


class Files:
    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


class Stage:
    """An incarnation whose captures and commits do what a test says."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings | None = None) -> None:
        self.staging = top
        self.publish_errors: list[Exception] = []
        self.prune_error: Exception | None = None
        self.capture_error: Exception | None = None
        self.lease_error: Exception | None = None
        self.published = 0
        self.captures = 0
        self.lost: list[str] = []
        self.journal = FakeJournal()
        self.seq = 0
        self.steps = {"0": Step("0", 1, 1)}
        job = JobIdentity("c", "jane", UID, GID, 7)
        options = Options(interval=Interval("fixed", 1.0), keep=5)
        incarnation = SimpleNamespace(
            spec=JobSpec(job, "n1", 1, 2, options),
            settings=settings or Settings(),
            gpus=None,
            node=SimpleNamespace(
                installation=criu.Installation("/criu", "4.2.1", False), key=b"k" * 16, fingerprint={}, feature="f"
            ),
            files=Files(),
            store=SimpleNamespace(next_seq=self._next, dir=top),
            epoch=3,
            journal=self.journal,
            staging=top,
            shm=top,
            enter=Path("/enter"),
            script=None,
            starting=asyncio.Lock(),
            plan=None,
            disowned=0,
            superseded="",
            commands=Commands(Path("/enter"), Hooks(), options, cast(Journal, self.journal)),
        )
        monkeypatch.setattr(lease, "check", self._check)
        monkeypatch.setattr(group, "capture", self._capture)
        monkeypatch.setattr(transfer, "publish", self._publish)
        monkeypatch.setattr(retention, "prune", self._prune)
        self.notices = Notices()
        self.checkpointer = Checkpointer(
            cast(Incarnation, incarnation), self.steps, self.notices, cast(SlurmPort, None), self._lose, StepNumbers()
        )

    def _next(self) -> int:
        self.seq += 1
        return self.seq

    async def _lose(self, reason: str) -> None:
        self.lost.append(reason)

    async def _check(self, *_: Any) -> None:
        if self.lease_error is not None:
            raise self.lease_error

    async def _capture(self, steps: Any, script: Any, seq: int, *_: Any) -> group.Captured:
        self.captures += 1
        directory = self.staging / str(seq)
        directory.mkdir()
        await asyncio.sleep(0.01)
        if self.capture_error is not None:
            directory.rmdir()
            raise self.capture_error
        return group.Captured(directory, steps=[image()], taken=1000.0, freeze_seconds=0.5, capture_seconds=1.0)

    async def _publish(self, directory: Path, store: Any, files: Any, manifest: Any, *_: Any) -> Any:
        self.published += 1
        if self.publish_errors:
            raise self.publish_errors.pop(0)
        return manifest

    async def _prune(self, store: Any, files: Any, keep: int, protect: set[int]) -> None:
        assert keep == 5
        if self.prune_error is not None:
            raise self.prune_error

    def left(self) -> list[Path]:
        return list(self.staging.iterdir())
