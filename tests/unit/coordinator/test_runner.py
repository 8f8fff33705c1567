"""How a step starts: restored, replayed, afresh, or unwrapped; and that its shims get an answer whatever happens."""

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
from slurmckpt.coordinator.first_pid import place
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.coordinator.notices import Notices
from slurmckpt.coordinator.plan import Plan
from slurmckpt.coordinator.pod import TaskState
from slurmckpt.coordinator.pod_init import PodError
from slurmckpt.coordinator.runner import StepRunner
from slurmckpt.coordinator.script import reception
from slurmckpt.coordinator.spec import JobSpec, Options
from slurmckpt.coordinator.step import Step, StepNumbers
from slurmckpt.coordinator.streams import OutputHolder
from slurmckpt.coordinator.task import Task
from slurmckpt.coordinator.wire import Channel
from slurmckpt.errors import Refused, SlurmckptError
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


@pytest.fixture
def stage(tmp_path: Path, user_files: UserFiles, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, user_files, monkeypatch)


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def awaited() -> None:
        await scene()

    with no_descriptor_is_lost():
        asyncio.run(awaited())


def test_a_first_start(stage: Stage) -> None:
    async def scene() -> None:
        incarnation = stage.incarnation([])
        assert await stage.run(incarnation) == ["RUN"]
        (pod,) = FakePod.made
        assert pod.place == place(7, 2, "0")
        assert pod.events == ["built", "started", "pipe closed", "gone"]
        assert stage.journal.lines == ["0 running None", "0 ended 0"]

    play(scene)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PodError("the pod of step 0 cannot be built: no"), "the pod of step 0 cannot be built: no"),
        (OSError(24, "Too many open files"), "[Errno 24] Too many open files"),
        (KeyError("a fault of ours"), "'a fault of ours'"),
    ],
)
def test_a_step_whose_pod_cannot_be_built_runs_unwrapped(stage: Stage, error: Exception, reason: str) -> None:
    async def scene() -> None:
        FakePod.build_error = error
        words = await stage.run(stage.incarnation([]))
        assert words == [f"SAY slurmckpt: no checkpoints for step 0: {reason}", "DIRECT"]
        assert stage.steps["0"].pod is None

    play(scene)


def test_a_pod_that_cannot_start_its_tasks_is_ended(stage: Stage) -> None:
    """Otherwise the tasks that are its own already would wait in it for ever."""

    async def scene() -> None:
        FakePod.start_error = ConnectionError("pod init is gone")
        words = await stage.run(stage.incarnation([]))
        assert words[0] == "RUN"
        (pod,) = FakePod.made
        assert pod.events == ["built", "destroyed", "gone"]
        assert stage.steps["0"].pod is None

    play(scene)


def test_a_task_that_must_not_be_wrapped(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(pid: int, uid: int) -> list[int]:
        raise trust.Unwrappable("the task runs in a container")

    monkeypatch.setattr(trust, "check", check)

    async def scene() -> None:
        assert await stage.run(stage.incarnation([])) == [
            "SAY slurmckpt: no checkpoints for step 0: the task runs in a container",
            "DIRECT",
        ]
        assert FakePod.made == []

    play(scene)


def test_a_step_on_several_nodes(stage: Stage) -> None:
    async def scene() -> None:
        words = await stage.run(stage.incarnation([]), nnodes=2)
        assert words == ["SAY slurmckpt: no checkpoints for step 0: step 0 runs on 2 nodes", "DIRECT"]

    play(scene)


async def advanced(incarnation: Incarnation) -> Incarnation:
    await incarnation.advance()
    return incarnation


def test_a_restored_step(stage: Stage) -> None:
    async def scene() -> None:
        plan = stage.plan(4, ["batch"])
        assert await stage.run(await advanced(stage.incarnation([plan])), "batch") == ["RUN"]
        assert stage.restores == [4]
        assert stage.steps["batch"].restored_from == 4
        assert stage.journal.lines[0] == "restored #4, refused []"
        # All its steps are back: staging is free again.
        assert not plan.directory.exists()

    play(scene)


def test_the_older_checkpoint_is_tried_when_the_newest_cannot_be_restored(stage: Stage) -> None:
    async def scene() -> None:
        stage.restore_errors = [Refused("/home/jane/log is shorter")]
        plans = [stage.plan(4, ["batch"]), stage.plan(3, ["batch"])]
        incarnation = await advanced(stage.incarnation(plans))
        assert await stage.run(incarnation, "batch") == ["RUN"]
        assert stage.restores == [4, 3]
        assert stage.journal.lines[0] == "restored #3, refused ['#4: /home/jane/log is shorter']"
        first, second = FakePod.made
        assert first.events == ["destroyed", "gone"]
        assert second.events == ["gone"]

    play(scene)


def test_a_job_that_is_being_ended_is_not_started_from_its_top(stage: Stage) -> None:
    """What makes its restore fail is Slurm's kill."""

    async def scene() -> None:
        stage.restore_errors = [Refused("srun ended before step 0 had started again (wait status 256)")]
        stage.job_is_ending = True
        plans = [stage.plan(4, ["batch"]), stage.plan(3, ["batch"])]
        assert await stage.run(await advanced(stage.incarnation(plans)), "batch") == ["EXIT 9"]
        assert stage.restores == [4]
        assert stage.journal.lines == []
        (pod,) = FakePod.made
        assert pod.events == ["destroyed", "gone"]

    play(scene)


def test_a_cold_start_says_what_was_found(stage: Stage) -> None:
    async def scene() -> None:
        stage.restore_errors = [Refused("reason a"), OSError(5, "Input/output error")]
        plans = [stage.plan(4, ["batch"]), stage.plan(3, ["batch"])]
        reason = "no checkpoint fits: #4: reason a; #3: [Errno 5] Input/output error"
        assert await stage.run(await advanced(stage.incarnation(plans)), "batch") == [
            f"SAY slurmckpt: cold start: {reason}",
            "RUN",
        ]
        assert stage.journal.lines[0] == f"cold start: {reason}"
        assert stage.steps["batch"].restored_from is None

    play(scene)


def test_restores_are_tried_a_bounded_number_of_times(stage: Stage) -> None:
    async def scene() -> None:
        stage.restore_errors = [Refused(f"no {n}") for n in range(5)]
        plans = [stage.plan(seq, ["batch"]) for seq in (5, 4, 3, 2, 1)]
        incarnation = await advanced(stage.incarnation(plans, attempts=2))
        words = await stage.run(incarnation, "batch")
        assert words == ["SAY slurmckpt: cold start: no checkpoint fits: #5: no 0; #4: no 1", "RUN"]
        assert stage.restores == [5, 4]
        assert not (stage.top / "restore" / "4").exists()

    play(scene)


def test_another_command_is_not_restored(stage: Stage) -> None:
    async def scene() -> None:
        incarnation = await advanced(stage.incarnation([stage.plan(4, ["batch"])]))
        words = await stage.run(incarnation, "batch", argv_digest="e" * 64)
        assert words[0].startswith(
            "SAY slurmckpt: cold start: no checkpoint fits: #4: step batch ran in another directory"
        )
        assert stage.restores == []

    play(scene)


def test_a_failed_restore_leaves_output_and_shared_memory_as_they_were(stage: Stage, home: Path) -> None:
    out = home / "out"

    async def scene() -> None:
        def half_done(plan: Plan, holders: list[OutputHolder]) -> None:
            os.truncate(out, 0)
            os.pwrite(holders[0].descriptor, b"of the old incarnation", 0)
            (stage.shm / "torch_1").touch()
            plan.filled_shm = True

        stage.during_restore = half_done
        stage.restore_errors = [criu.CriuError("Can't fork for 101: File exists")]
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT)
        if os.geteuid() == 0:
            os.chown(out, UID, GID)
        os.write(descriptor, b"so far\n")
        step = Step("batch", 1, 1, argv_digest="d" * 64)
        stage.steps["batch"] = step
        one, shim = channels()
        incarnation = await advanced(stage.incarnation([stage.plan(4, ["batch"])]))
        runner = StepRunner(incarnation, stage.steps, stage.notices, StepNumbers())
        await runner.run(step, [task(one, {1: descriptor})])
        shim.close()

    play(scene)
    assert out.read_bytes() == b"so far\n"
    assert os.listdir(stage.shm) == []


def test_a_restore_that_is_cancelled_leaves_no_pod(stage: Stage) -> None:
    async def scene() -> None:
        stage.restore_errors = [asyncio.CancelledError()]
        one, shim = channels()
        given = task(one)
        incarnation = await advanced(stage.incarnation([stage.plan(4, ["batch"])]))
        step = Step("batch", 1, 1, argv_digest="d" * 64)
        with pytest.raises(asyncio.CancelledError):
            await StepRunner(incarnation, {"batch": step}, stage.notices, StepNumbers()).run(step, [given])
        (pod,) = FakePod.made
        assert pod.events == ["destroyed", "gone"]
        step.streams.close()
        given.close()
        shim.close()

    play(scene)


def test_a_step_that_had_ended_runs_again_with_the_script(stage: Stage) -> None:
    """Its output may have been truncated by the script that runs again: only the step itself can write it anew."""

    async def scene() -> None:
        incarnation = await advanced(stage.incarnation([stage.plan(4, ["2"])]))
        assert await stage.run(incarnation, "0") == ["RUN"]
        assert len(FakePod.made) == 1
        assert stage.restores == []

    play(scene)


def test_once_a_step_is_back_no_other_comes_from_another_cut(stage: Stage) -> None:
    async def scene() -> None:
        incarnation = await advanced(stage.incarnation([stage.plan(4, ["0", "1"]), stage.plan(3, ["0", "1"])]))
        assert await stage.run(incarnation, "0") == ["RUN"]
        stage.restore_errors = [Refused("no")]
        assert await stage.run(incarnation, "1") == [
            "SAY slurmckpt: cold start: no checkpoint fits: #4: no",
            "RUN",
        ]
        assert stage.restores == [4, 4]

    play(scene)


def test_a_shim_that_is_gone_stops_nothing(stage: Stage) -> None:
    async def scene() -> None:
        FakePod.build_error = SlurmckptError("no")
        one, shim = channels()
        two, other = channels()
        shim.close()
        step = Step("0", 2, 1)
        tasks = [task(one, {1: os.open("/dev/null", os.O_WRONLY)}, 0, 2), task(two, index=1, ntasks=2)]
        await StepRunner(stage.incarnation([]), {"0": step}, stage.notices, StepNumbers()).run(step, tasks)
        assert await heard(other) == ["DIRECT"]
        other.close()

    play(scene)
