"""How a step starts: restored, replayed, afresh, or unwrapped; and that its shims get an answer whatever happens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmckpt.coordinator import trust
from slurmckpt.coordinator.first_pid import place
from slurmckpt.coordinator.pod_init import PodError
from slurmckpt.coordinator.runner import StepRunner
from slurmckpt.coordinator.step import Step, StepNumbers
from slurmckpt.errors import SlurmckptError
from slurmckpt.store.identity import UserFiles
from tests.unit.coordinator.parts import channels, task
from tests.unit.coordinator.running import FakePod, Stage, heard, play


@pytest.fixture
def stage(tmp_path: Path, user_files: UserFiles, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, user_files, monkeypatch)


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
