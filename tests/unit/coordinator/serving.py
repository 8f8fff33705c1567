"""A server with a job that only notes what it is asked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.coordinator import sockets
from slurmckpt.coordinator.job import Job
from slurmckpt.coordinator.server import Server
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.task import Hello
from slurmckpt.coordinator.wire import Channel
from tests.unit.coordinator.parts import UID, no_descriptor_is_lost

JOB_UID = UID if os.geteuid() == 0 else os.getuid()
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other users' processes")


class FakeJob:
    """As much of a job as the server asks for."""

    def __init__(self, run_directory: Path) -> None:
        self.spec = SimpleNamespace(job=SimpleNamespace(job_id=7, user="jane", uid=JOB_UID))
        self.run_directory = run_directory
        self.steps: dict[str, Step] = {}
        self.checkpoint_error: Exception | None = None
        self.stops = 0
        self.outside: list[Hello] = []
        self.inside = False
        self.taken = asyncio.Event()

    def status(self) -> dict[str, Any]:
        return {"job_id": 7, "node": "n1"}

    def holds(self, pid: int) -> bool:
        return self.inside

    async def checkpoint(self) -> SimpleNamespace:
        self.taken.set()
        if self.checkpoint_error is not None:
            raise self.checkpoint_error
        return SimpleNamespace(seq=3, files=[SimpleNamespace(size=5), SimpleNamespace(size=7)], freeze_seconds=0.25)

    async def stop(self) -> None:
        self.stops += 1

    def runs_outside(self, hello: Hello) -> None:
        self.outside.append(hello)

    async def leave_alone(self, step: Step | None, channel: Channel) -> None:
        await channel.send("DIRECT")

    def step_of(self, hello: Hello) -> Step | None:
        step = self.steps.setdefault(hello.step_name, Step.of(hello, hello.step_name))
        return None if step.closed else step


Scene = Callable[[FakeJob], Awaitable[None]]


def serve(run: Path, scene: Scene) -> FakeJob:
    """Play a scene while the job in `run` is served; serve() has returned when this returns."""
    run.mkdir(exist_ok=True)

    async def play() -> FakeJob:
        job = FakeJob(run)
        serving = Server(cast(Job, job), *sockets.bind(run))
        running = asyncio.create_task(serving.serve())
        try:
            await scene(job)
        finally:
            await asyncio.wait_for(serving.end(), 60)
            await asyncio.wait_for(running, 60)
        return job

    with no_descriptor_is_lost():
        return asyncio.run(play())
