"""Steps that start, with pods and restores that do what a test says."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from slurmckpt.capture import criu
from slurmckpt.config import Restore, Settings
from slurmckpt.coordinator import restoring, trust
from slurmckpt.coordinator import runner as runners
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.coordinator.notices import Notices
from slurmckpt.coordinator.plan import Plan
from slurmckpt.coordinator.pod import TaskState
from slurmckpt.coordinator.runner import StepRunner
from slurmckpt.coordinator.script import reception
from slurmckpt.coordinator.spec import JobSpec, Options
from slurmckpt.coordinator.step import Step, StepNumbers
from slurmckpt.coordinator.streams import OutputHolder
from slurmckpt.coordinator.task import Task
from slurmckpt.coordinator.wire import Channel
from slurmckpt.identity import JobIdentity
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.manifest import Manifest
from tests.unit.coordinator.parts import GID, UID, channels, image, launch, no_descriptor_is_lost, task
from tests.unit.store.world import World


class FakePod:
    """A pod whose tasks end at once with status 0. made: all of them, in order."""

    made: ClassVar[list[FakePod]] = []
    build_error: Exception | None = None
    start_error: Exception | None = None

    def __init__(self, step: str, *_: object, anchor: object = None, place: int = 0) -> None:
        self.step, self.place = step, place
        self.uid, self.gid, self.groups = UID, GID, [GID]
        self.settings = SimpleNamespace(run=Path("/"))
        self.events: list[str] = []
        self.tasks: dict[int, TaskState] = {}
        self.ended = asyncio.Event()
        self.running = False
        FakePod.made.append(self)

    async def build(self, shim_pid: int, network: str) -> None:
        self.events.append("built")
        if FakePod.build_error is not None:
            raise FakePod.build_error

    async def start(self, tasks: list[Task]) -> None:
        for index, each in enumerate(tasks):
            self.tasks[index] = TaskState(index, {}, 101, 0)
            await each.channel.send("RUN")
            if FakePod.start_error is not None:
                raise FakePod.start_error
            each.close()
        self.events.append("started")
        self.ended.set()

    def close_status_pipe(self) -> None:
        self.events.append("pipe closed")

    def destroy(self) -> None:
        self.events.append("destroyed")

    async def gone(self) -> None:
        self.events.append("gone")


class FakeJournal:
    former_nodes = ("n0",)

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def step(self, name: str, ntasks: int, state: str, status: int | None) -> None:
        self.lines.append(f"{name} {state} {status}")

    async def event(self, text: str) -> None:
        self.lines.append(text)

    async def cold_start(self, reason: str, refused: list[str]) -> None:
        self.lines.append(f"cold start: {reason}")

    async def restored(self, manifest: Manifest, seconds: float, refused: list[str]) -> None:
        self.lines.append(f"restored #{manifest.seq}, refused {refused}")


class FakePlanner:
    """Gives the plans that a test wants."""

    def __init__(self, plans: list[Plan]) -> None:
        self.plans = plans
        self.refused: list[str] = []

    async def next(self) -> Plan | None:
        return self.plans.pop(0) if self.plans else None

    def refuse(self, seq: int, reason: str) -> None:
        self.refused.append(f"#{seq}: {reason}")

    def cold_start_reason(self) -> str:
        return "no checkpoint fits: " + "; ".join(self.refused)


class Stage:
    """An incarnation with the given plans, and a runner for its steps."""

    def __init__(self, top: Path, files: UserFiles, monkeypatch: pytest.MonkeyPatch) -> None:
        self.top = top
        self.files = files
        self.journal = FakeJournal()
        self.notices = Notices()
        self.steps: dict[str, Step] = {}
        self.restores: list[int] = []
        self.restore_errors: list[BaseException] = []
        self.job_is_ending = False
        self.during_restore: Callable[[Plan, list[OutputHolder]], None] = lambda plan, holders: None
        FakePod.made, FakePod.build_error, FakePod.start_error = [], None, None
        monkeypatch.setattr(runners, "Pod", FakePod)
        monkeypatch.setattr(trust, "check", lambda pid, uid: [GID])
        monkeypatch.setattr(restoring, "restore", self._restore)
        # No srun, so no stand-in: what a script with sruns needs is tested with the script.
        monkeypatch.setattr(reception, "prepare", lambda *_: None)
        self.shm = top / "shm"
        self.shm.mkdir()

    async def _restore(
        self,
        restorer: object,
        plan: Plan,
        saved: object,
        step: Step,
        tasks: Any,
        pod: FakePod,
        holders: Any,
        *_: object,
    ) -> list[str]:
        self.restores.append(plan.manifest.seq)
        self.during_restore(plan, holders)
        if self.restore_errors:
            raise self.restore_errors.pop(0)
        for each in tasks:
            await each.channel.send("RUN")
            each.close()
        pod.tasks[0] = TaskState(0, {}, 101, 0)
        pod.ended.set()
        return []

    async def _ending(self) -> bool:
        return self.job_is_ending

    def plan(self, seq: int, steps: list[str]) -> Plan:
        blank = World(self.top, JobIdentity("c", "jane", UID, GID, 7), cast(Any, None), self.files, self.top).manifest(
            seq
        )
        images = [replace(image(step=step), argv_digest="d" * 64) for step in steps]
        directory = self.top / "restore" / str(seq)
        directory.mkdir(parents=True)
        return Plan(replace(blank, steps=images), directory, set(steps))

    def incarnation(self, plans: list[Plan], attempts: int = 3) -> Incarnation:
        spec = JobSpec(JobIdentity("c", "jane", UID, GID, 7), "n1", 1, 0, Options())
        return Incarnation(
            spec=spec,
            settings=Settings(restore=Restore(attempts=attempts)),
            node=cast(Any, SimpleNamespace(installation=criu.Installation("/criu", "4.2.1", False), fingerprint={})),
            files=self.files,
            store=cast(Any, None),
            epoch=2,
            journal=cast(Any, self.journal),
            planner=cast(Any, FakePlanner(plans)),
            staging=self.top,
            shm=self.shm,
        )

    async def run(self, incarnation: Incarnation, name: str = "0", **changes: object) -> list[str]:
        """Run a step of one task; gives what its shim hears."""
        one, shim = channels()
        step = self.steps[name] = Step(name, 1, 1, argv_digest="d" * 64, command="./train.py")
        step.launch = launch(int(name)) if name.isdigit() else None
        for key, value in changes.items():
            setattr(step, key, value)
        given = task(one, {1: os.open("/dev/null", os.O_WRONLY)})
        runner = StepRunner(incarnation, self.steps, self.notices, StepNumbers(), ending=self._ending)
        await asyncio.wait_for(runner.run(step, [given]), 60)
        words = await heard(shim)
        shim.close()
        return words


async def heard(channel: Channel) -> list[str]:
    words = []
    while (message := await asyncio.wait_for(channel.receive(), 60)) is not None:
        words.append(" ".join([message.verb, *(value for _, value in message.pairs)]))
    return words


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def awaited() -> None:
        await scene()

    with no_descriptor_is_lost():
        asyncio.run(awaited())


async def advanced(incarnation: Incarnation) -> Incarnation:
    await incarnation.advance()
    return incarnation
