"""Which ends of tasks are undone, and that every other one reaches Slurm, whatever fails."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.config import Recover
from slurmckpt.coordinator.recovery import crash as crashes
from slurmckpt.coordinator.recovery.crash import Attempts, Crashes, End, asked_for, describe, is_crash
from slurmckpt.coordinator.recovery.in_place import InPlace, Lost, Unfit
from slurmckpt.coordinator.step import Step
from slurmckpt.errors import SlurmckptError
from tests.unit.awaiting import until
from tests.unit.coordinator.recovery.stage import SpokenPod, Stage

SEGV, TERM = int(signal.SIGSEGV), int(signal.SIGTERM)
EXIT_1, EXIT_139 = 1 << 8, 139 << 8
CODES = Recover().exit_codes


@pytest.mark.parametrize(
    ("status", "crash"),
    [
        (SEGV, True),
        (SEGV | 0x80, True),
        (9, True),
        (EXIT_139, True),
        (137 << 8, True),
        (EXIT_1, False),
        (143 << 8, False),
    ],
)
def test_what_may_be_a_crash(status: int, crash: bool) -> None:
    assert is_crash(status, CODES) is crash


@pytest.mark.parametrize(
    ("status", "delivered", "asked"),
    [
        (SEGV, set(), False),
        (SEGV, {18}, False),
        (SEGV, {SEGV}, True),
        (10, {10}, True),
        ((128 + 10) << 8, {10}, True),
        # What ends it after SIGTERM is how it takes it.
        (SEGV, {18, TERM}, True),
        (EXIT_139, {int(signal.SIGINT)}, True),
    ],
)
def test_what_slurm_has_asked_for(status: int, delivered: set[int], asked: bool) -> None:
    assert asked_for(status, delivered) is asked


def test_how_it_is_told() -> None:
    assert [describe(status) for status in (SEGV, SEGV | 0x80, 40, EXIT_139)] == [
        "died of SIGSEGV",
        "died of SIGSEGV",
        "died of signal 40",
        "ended with exit code 139",
    ]


class FakeInPlace:
    """errors: what the next restores fail with."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.errors: list[Exception] = []
        self.made = 0

    async def recover(self, until: float | None) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        self.made += 1
        for step in self.stage.steps.values():
            assert step.pod is not None
            step.pod.exits.clear()
            step.pod.delivered.clear()
        return self.stage.checkpointer.newest


class Scenery(Stage):
    """With a checkpoint #1, and something that decides about ends."""

    def __init__(self, top: Path, recover: Recover | None = None, tasks: int = 1) -> None:
        super().__init__(top, recover, tasks)
        self.in_place = FakeInPlace(self)
        self.attempts = Attempts((recover or Recover()).attempts)
        self.crashes = Crashes(self.scene, cast(InPlace, self.in_place), self.attempts)
        self.checkpointer.newest = self.checkpointer.manifest(1)
        self.oom = False
        self.crashes._memory = {"0": cast(Any, SimpleNamespace(any=lambda: self.oom))}

    def end(self, status: int, index: int = 0) -> None:
        self.pod.exits[index] = status
        self.crashes.take(End(self.step, self.pod, index, status))

    def play(self, scene: Callable[[], Awaitable[None]]) -> None:
        async def played() -> None:
            running = asyncio.create_task(self.crashes.run())
            await scene()
            running.cancel()

        asyncio.run(played())

    def ends(self, *statuses: int) -> list[str]:
        """What becomes of these ends of task 0, one after the other."""

        async def decided(made: int, told: int) -> None:
            await until(lambda: self.in_place.made > made or "pass 0" in self.pod.told[told:])

        async def scene() -> None:
            for status in statuses:
                made, told = self.in_place.made, len(self.pod.told)
                self.end(status)
                await decided(made, told)

        self.play(scene)
        return self.pod.told


def test_a_crash_is_undone(tmp_path: Path) -> None:
    stage = Scenery(tmp_path)
    assert stage.ends(SEGV) == []
    assert stage.in_place.made == 1
    assert stage.noted == ["task 0 of step 0 died of SIGSEGV: all ranks were restored in place from #1"]


@pytest.mark.parametrize("status", [EXIT_1, 143 << 8])
def test_another_end_passes_at_once(tmp_path: Path, status: int) -> None:
    stage = Scenery(tmp_path)
    assert stage.ends(status) == ["pass 0"]
    assert (stage.in_place.made, stage.noted, stage.slurm.asked) == (0, [], 0)


def test_what_was_asked_for_passes_at_once(tmp_path: Path) -> None:
    stage = Scenery(tmp_path)
    stage.pod.delivered[0] = {18, TERM}
    assert stage.ends(TERM) == ["pass 0"]
    assert (stage.in_place.made, stage.noted, stage.slurm.asked) == (0, [], 0)


def test_what_was_asked_for_and_is_known_a_moment_later_passes(tmp_path: Path) -> None:
    """Slurm may have signalled the rank before its shim, and the end is known before the signal."""
    stage = Scenery(tmp_path)

    async def sync() -> None:
        stage.pod.delivered[0] = {TERM}

    stage.pod.sync = sync  # type: ignore[method-assign]
    assert stage.ends(TERM) == ["pass 0"]
    assert (stage.in_place.made, stage.noted) == (0, [])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": frozenset({"CANCELLED", "COMPLETING"})}, "the job is CANCELLED+COMPLETING"),
        ({"state": frozenset({"RUNNING", "COMPLETING"})}, "the job is COMPLETING+RUNNING"),
        ({"state": frozenset({"PENDING"})}, "the job is PENDING"),
        ({"preempt_time": 1.0}, "the job is being preempted"),
        ({"time_limit": 1, "end_time": 1.0}, "the job's time is up"),
        (None, "Slurm does not answer"),
    ],
)
def test_a_job_that_ends_is_not_held_up(tmp_path: Path, changes: dict[str, Any] | None, reason: str) -> None:
    """Nor is one of which nothing can be known; and its output is what it would be without us."""
    stage = Scenery(tmp_path)
    if changes is None:
        stage.slurm.job_info = None
    else:
        stage.slurm.change(**changes)
    assert stage.ends(SEGV) == ["pass 0"]
    assert stage.noted == [f"task 0 of step 0 died of SIGSEGV: not recovered, as {reason}"]


def test_before_the_first_checkpoint_all_is_as_without_us(tmp_path: Path) -> None:
    stage = Scenery(tmp_path)
    stage.checkpointer.newest = None
    assert stage.ends(SEGV) == ["pass 0"]
    assert stage.noted == ["task 0 of step 0 died of SIGSEGV: not recovered, as no checkpoint had been taken"]


def test_a_lack_of_memory(tmp_path: Path) -> None:
    stage = Scenery(tmp_path)
    stage.oom = True
    assert stage.ends(9)[-1] == "pass 0"
    assert stage.said == ["task 0 of step 0 died of SIGKILL: not recovered, as its step had no memory left"]


def test_nothing_is_kept_of_the_steps_that_have_ended(tmp_path: Path) -> None:
    """A script may start ten thousand, one after the other."""
    stage = Scenery(tmp_path)
    for name in ("1", "2", "3"):
        pod = SpokenPod(name)
        stage.steps[name] = Step(name, 1, 1, pod=pod)
        stage.crashes.watch(stage.steps[name])
        pod.ended.set()
    assert set(stage.crashes._memory) == {"0", "3"}


def test_the_same_crash_twice_from_one_checkpoint(tmp_path: Path) -> None:
    stage = Scenery(tmp_path)
    assert stage.ends(SEGV, SEGV)[-1] == "pass 0"
    assert stage.in_place.made == 1
    assert stage.said == [
        "task 0 of step 0 died of SIGSEGV again after a restore from #1 in place:"
        " this is the program's own failure, and is not recovered from"
    ]


def test_a_step_that_slurm_has_killed_is_no_crash(tmp_path: Path) -> None:
    """Its shims are gone at once, and so is its pod: with proctrack/linuxproc ranks may die before."""
    stage = Scenery(tmp_path)
    stage.pod.ended.set()
    stage.ends(9)
    told = "task 0 of step 0 died of SIGKILL: not recovered, as its step was ended"
    assert (stage.noted, stage.in_place.made) == ([told], 0)
    assert stage.scene.notices.first(told)


def test_a_script_that_ends_as_its_step_is_told_once(tmp_path: Path) -> None:
    """By 139 a shell says that its program died of SIGSEGV. Of another signal nothing was said yet."""
    stage = Scenery(tmp_path)
    stage.in_place.errors = [Unfit("it cannot") for _ in range(3)]

    async def scene() -> None:
        for name, status in (("0", SEGV), ("batch", EXIT_139), ("batch", 134 << 8)):
            stage.step.name, told = name, len(stage.pod.told)
            stage.end(status)
            await until(lambda: "pass 0" in stage.pod.told[told:])  # noqa: B023

    stage.play(scene)
    whats = ["step 0 died of SIGSEGV", "step batch ended with exit code 139", "step batch ended with exit code 134"]
    told = [f"task 0 of {what}: not recovered: it cannot" for what in whats]
    assert stage.noted == told
    assert [not stage.scene.notices.first(text) for text in told] == [True, False, True]


def test_another_crash_or_another_checkpoint(tmp_path: Path) -> None:
    stage = Scenery(tmp_path)
    assert stage.ends(SEGV, 9) == []
    stage.checkpointer.newest = stage.checkpointer.manifest(2)
    assert stage.ends(SEGV) == []
    assert stage.in_place.made == 3


def test_attempts_are_bounded(tmp_path: Path) -> None:
    stage = Scenery(tmp_path, Recover(attempts=1))
    assert stage.ends(SEGV, 9)[-1] == "pass 0"
    assert stage.said == [
        "task 0 of step 0 died of SIGKILL: not recovered: recover.attempts = 1 allows no further restore in place"
    ]


@pytest.mark.parametrize("error", [Unfit("task 1 of step 0 has ended since #1"), SlurmckptError("the pod is gone")])
def test_what_cannot_be_restored_says_why(tmp_path: Path, error: Exception) -> None:
    stage = Scenery(tmp_path)
    stage.in_place.errors = [error]
    assert stage.ends(SEGV)[-1] == "pass 0"
    assert stage.said == [f"task 0 of step 0 died of SIGSEGV: not recovered: {error}"]
    # It was no attempt: nothing was changed.
    assert stage.ends(SEGV)[-1] == stage.pod.told[-1]
    assert stage.in_place.made == 1


@pytest.mark.parametrize("error", [Lost("told"), KeyError("a fault of ours"), OSError(5, "Input/output error")])
def test_an_end_passes_whatever_happens(tmp_path: Path, error: Exception) -> None:
    stage = Scenery(tmp_path)
    stage.in_place.errors = [error]
    assert stage.ends(SEGV) == ["pass 0"]


def test_ranks_that_follow_a_dead_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be noticed before it: their end is part of the crash."""
    monkeypatch.setattr(crashes, "_COMPANY_SECONDS", 60)
    stage = Scenery(tmp_path, tasks=3)

    async def scene() -> None:
        stage.end(EXIT_1, 1)
        await asyncio.sleep(0.02)
        assert stage.pod.told == []
        stage.end(9, 0)
        await until(lambda: stage.in_place.made)
        assert stage.pod.told == []

    stage.play(scene)


def test_a_rank_that_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashes, "_COMPANY_SECONDS", 0.05)
    stage = Scenery(tmp_path, tasks=2)

    async def scene() -> None:
        stage.end(EXIT_1, 1)
        await until(lambda: stage.pod.told)
        assert stage.pod.told == ["pass 1"]

    stage.play(scene)
    assert stage.in_place.made == 0


def test_ends_elsewhere_pass_after_a_restore(tmp_path: Path) -> None:
    """A pod that was not part of the cut."""
    stage = Scenery(tmp_path)
    script = SpokenPod("batch")
    script.exits[0] = EXIT_1

    async def scene() -> None:
        stage.end(9)
        stage.crashes.take(End(stage.step, script, 0, EXIT_1))
        await until(lambda: script.told)

    stage.play(scene)
    assert (stage.in_place.made, stage.pod.told, script.told) == (1, [], ["pass 0"])
