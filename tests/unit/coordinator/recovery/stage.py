"""A job in which the recovery is tried: a Slurm, pods and a checkpointer that do what a test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from slurmckpt.config import Recover, Settings
from slurmckpt.coordinator.notices import Notices
from slurmckpt.coordinator.pod import Held, Pod, TaskState
from slurmckpt.coordinator.pod_init import PodSettings
from slurmckpt.coordinator.recovery.scene import Scene
from slurmckpt.coordinator.step import Step, StepNumbers
from slurmckpt.errors import SlurmError
from slurmckpt.identity import JobIdentity
from slurmckpt.slurm.port import JobInfo
from slurmckpt.store.manifest import Manifest
from tests.unit.coordinator.parts import GID, UID, image
from tests.unit.store.world import World

JOB = JobInfo(
    job_id=7,
    address="7",
    state=frozenset({"RUNNING"}),
    user_id=UID,
    features="",
    prefer="",
    nodes=("n1",),
    node_count=1,
    partition="debug",
    restart_count=0,
    admin_comment="",
    requeue=True,
)


class Slurm:
    """A controller. job_info: its answer; None: it does not answer."""

    def __init__(self, **changes: Any) -> None:
        self.job_info: JobInfo | None = replace(JOB, **changes)
        self.configuration = {"PreemptType": "preempt/none", "MaxBatchRequeue": "5"}
        self.grace = 0.0
        self.asked = 0
        self.requeued: list[int] = []
        self.requeue_error: SlurmError | None = None

    async def job(self, job_id: int) -> JobInfo:
        self.asked += 1
        if self.job_info is None:
            raise SlurmError("Unable to contact slurm controller")
        return self.job_info

    async def config(self) -> dict[str, str]:
        if self.job_info is None:
            raise SlurmError("Unable to contact slurm controller")
        return self.configuration

    async def grace_time(self, partition: str) -> float:
        return self.grace

    async def requeue(self, job_id: int) -> None:
        if self.requeue_error is not None:
            raise self.requeue_error
        self.requeued.append(job_id)

    def change(self, **changes: Any) -> None:
        assert self.job_info is not None
        self.job_info = replace(self.job_info, **changes)


class SpokenPod(Pod):
    """A pod of which only what it is told is kept. Its tasks run."""

    def __init__(self, step: str, tasks: int = 1) -> None:
        super().__init__(step, UID, GID, [], PodSettings(Path("/"), Path("/"), Path("/"), True), leader_pid=100)
        self.init_pid = 4711
        self.told: list[str] = []
        for index in range(tasks):
            self.tasks[index] = TaskState(index, {}, 101 + index)

    async def hold(self, exits: bool, signals: int, patience: float | None = None) -> None:
        self.told.append(f"hold {exits} {signals:x}" + ("" if patience is None else f" {patience:.0f} s"))

    async def pass_on(self, held: Held) -> None:
        if not held.signal:
            self.tasks[held.index].status = self.exits.pop(held.index)
        self.told.append(f"pass {held.index}" + (f" signal {held.signal}" if held.signal else ""))

    async def say(self, text: str) -> None:
        self.told.append(f"say {text}")

    def destroy(self) -> None:
        self.told.append("destroy")
        self.ended.set()

    async def continue_pids(self, last: int) -> None:
        self.told.append(f"pids after {last}")

    async def kill_tasks(self) -> None:
        self.told.append("kill")


@dataclass
class FakeCheckpointer:
    """Takes checkpoints that do nothing. errors: what the next ones fail with."""

    manifest: Callable[[int], Manifest]
    newest: Manifest | None = None
    errors: list[Exception] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    taken: int = 0
    committed: list[Any] = field(default_factory=list)
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    called_off = staticmethod(contextlib.nullcontext)

    async def take(self) -> Manifest:
        if self.errors:
            raise self.errors.pop(0)
        self.taken += 1
        self.newest = self.manifest(self.taken)
        return self.newest


class Stage:
    """One job with a step 0, whose pod has `tasks` tasks."""

    def __init__(
        self, top: Path, recover: Recover | None = None, tasks: int = 1, events: frozenset[str] | None = None
    ) -> None:
        settings = Settings(recover=recover or Recover())
        identity = JobIdentity("c", "jane", UID, GID, 7)
        self.noted: list[str] = []
        self.slurm = Slurm()
        self.pod = SpokenPod("0", tasks)
        self.step = Step("0", tasks, 1, pod=self.pod, argv_digest="d" * 64)
        self.steps = {"0": self.step}
        self.notices = Notices()
        world = World(top, identity, cast(Any, None), cast(Any, None), top)
        self.checkpointer = FakeCheckpointer(lambda seq: replace(world.manifest(seq), steps=[image()]))

        async def event(text: str) -> None:
            self.noted.append(text)

        self.incarnation = SimpleNamespace(
            settings=settings,
            spec=SimpleNamespace(job=identity),
            journal=SimpleNamespace(event=event),
            epoch=1,
            plan=None,
            script=None,
            starting=asyncio.Lock(),
            staging=top,
            commands=SimpleNamespace(restored=lambda steps, seq: None),
        )
        self.scene = Scene(
            incarnation=cast(Any, self.incarnation),
            steps=self.steps,
            notices=self.notices,
            slurm=cast(Any, self.slurm),
            checkpointer=cast(Any, self.checkpointer),
            numbers=StepNumbers(),
            events=settings.recover.events if events is None else events,
        )

    @property
    def said(self) -> list[str]:
        """Lines in the job's output."""
        return [line.removeprefix("say slurmckpt: ") for line in self.pod.told if line.startswith("say ")]
