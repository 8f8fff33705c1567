"""A step that is restored, or cannot be: what is tried, what is said, and what is left of a try."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from slurmckpt.capture import criu
from slurmckpt.coordinator.plan import Plan
from slurmckpt.coordinator.runner import StepRunner
from slurmckpt.coordinator.step import Step, StepNumbers
from slurmckpt.coordinator.streams import OutputHolder
from slurmckpt.errors import Refused
from slurmckpt.store.identity import UserFiles
from tests.unit.coordinator.parts import GID, UID, channels, task
from tests.unit.coordinator.running import FakePod, Stage, advanced, play


@pytest.fixture
def stage(tmp_path: Path, user_files: UserFiles, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, user_files, monkeypatch)


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
