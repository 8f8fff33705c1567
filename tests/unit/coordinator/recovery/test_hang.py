"""When a job counts as hanging, and what becomes of it."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from slurmckpt.config import Recover
from slurmckpt.coordinator.recovery import hang as hangs
from slurmckpt.coordinator.recovery.crash import Attempts
from slurmckpt.coordinator.recovery.hang import Hangs, Progress
from slurmckpt.coordinator.recovery.in_place import InPlace, Lost, Unfit
from tests.unit.awaiting import until
from tests.unit.coordinator.recovery.stage import Stage

STILL = Progress(10.0, frozenset({(1, 2, 3, 4)}), frozenset({4711}))


def progress(cpu: float = 10.0, size: int = 3, pods: int = 4711) -> Progress:
    return Progress(cpu, frozenset({(1, 2, size, 4)}), frozenset({pods}))


@pytest.mark.parametrize(
    ("now", "goes_on"),
    [
        (progress(), False),
        # A thread that looks at the clock.
        (progress(cpu=10.05), False),
        (progress(cpu=10.2), True),
        # A process that worked has ended.
        (progress(cpu=3.0), True),
        (progress(size=4), True),
        (progress(pods=4712), True),
    ],
)
def test_what_is_progress(now: Progress, goes_on: bool) -> None:
    assert now.goes_beyond(STILL, 100.0) is goes_on


def gated(
    cpu: float = 500.0, collectives: int = 9, waits_for: str = "rank 1", size: int = 3, absent: float = 7.0
) -> Progress:
    """Of ranks at a gate that burn CPU time while they wait for the GPU. absent: of the rank that does not come."""
    return Progress(cpu, frozenset({(1, 2, size, 4)}), frozenset({4711}), collectives, waits_for, absent)


@pytest.mark.parametrize(
    ("now", "goes_on"),
    [
        (gated(cpu=600.0), False),
        (gated(cpu=600.0, size=4), True),
        (gated(collectives=10), True),
        # It works, and will come.
        (gated(absent=8.0), True),
        # Nobody waits for anybody: they compute.
        (gated(cpu=600.0, waits_for=""), True),
        (gated(waits_for=""), False),
        # Somebody else is waited for now: something has moved.
        (gated(cpu=600.0, waits_for="rank 0"), True),
    ],
)
def test_what_is_progress_where_a_gate_counts(now: Progress, goes_on: bool) -> None:
    assert now.goes_beyond(gated(), 100.0) is goes_on


class FakeInPlace:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.error: Exception | None = None
        self.made = 0

    async def recover(self, until: float | None) -> Any:
        assert until is None
        if self.error is not None:
            raise self.error
        self.made += 1
        return self.stage.checkpointer.newest


class Scenery(Stage):
    """A job that does nothing; hang_after is 0.1 s."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch, attempts: int = 3) -> None:
        recover = Recover(hang_after=0.1, events=frozenset({"hang"}), attempts=attempts)
        super().__init__(top, recover)
        self.in_place = FakeInPlace(self)
        self.hangs = Hangs(self.scene, cast(InPlace, self.in_place), Attempts(attempts))
        self.checkpointer.newest = self.checkpointer.manifest(1)
        self.cpu = 0.0
        monkeypatch.setattr(self.hangs, "_measure", lambda: progress(self.cpu))

    def watch(self, condition: Any) -> None:
        async def scene() -> None:
            running = asyncio.create_task(self.hangs.run())
            await until(condition)
            running.cancel()

        asyncio.run(scene())


def test_a_hang_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Scenery(tmp_path, monkeypatch)
    stage.watch(lambda: stage.noted)
    assert stage.noted == [
        "the job has used no CPU time and printed nothing for 0.10 s: all ranks were restored in place from #1"
    ]


def test_the_second_hang_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Scenery(tmp_path, monkeypatch)
    stage.watch(lambda: "destroy" in stage.pod.told)
    assert stage.in_place.made == 1
    assert stage.said == [
        "the job has used no CPU time and printed nothing for 0.10 s again after a restore from #1 in place: this is"
        " the program's own failure, and is not recovered from; its tasks are killed"
    ]


def test_a_job_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Scenery(tmp_path, monkeypatch)

    def works() -> Progress:
        stage.cpu += 1
        return progress(stage.cpu)

    monkeypatch.setattr(stage.hangs, "_measure", works)
    # Each hundredth of a second.
    stage.watch(lambda: stage.cpu > 40)
    assert (stage.in_place.made, stage.noted) == (0, [])


def test_a_suspended_job_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Scenery(tmp_path, monkeypatch)
    stage.slurm.change(state=frozenset({"SUSPENDED"}))
    stage.watch(lambda: stage.slurm.asked > 2)
    assert (stage.in_place.made, stage.noted) == (0, [])


def test_a_long_checkpoint_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Scenery(tmp_path, monkeypatch)
    end = time.monotonic() + 0.4

    async def scene() -> None:
        async with stage.checkpointer.one_at_a_time:
            running = asyncio.create_task(stage.hangs.run())
            await until(lambda: time.monotonic() > end)
            running.cancel()

    asyncio.run(scene())
    assert (stage.in_place.made, stage.slurm.asked) == (0, 0)


@pytest.mark.parametrize("error", [Unfit("no checkpoint had been taken"), Lost("told")])
def test_what_cannot_be_undone_goes_on_hanging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """With nothing to go back to, it is not ours to end it. It is told once."""
    stage = Scenery(tmp_path, monkeypatch)
    stage.in_place.error = error
    stage.watch(lambda: stage.slurm.asked > 2)
    told = "the job has used no CPU time and printed nothing for 0.10 s: not recovered: no checkpoint had been taken"
    assert stage.said == stage.noted == ([told] if isinstance(error, Unfit) else [])
    assert "destroy" not in stage.pod.told


def test_it_is_off_unless_asked_for(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Recover(hang_after=0.01))
    asyncio.run(asyncio.wait_for(Hangs(stage.scene, cast(InPlace, None), Attempts(3)).run(), 60))


def test_cpu_time_of_a_process() -> None:
    before = hangs._cpu_seconds(os.getpid())
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert 0.05 < hangs._cpu_seconds(os.getpid()) - before < 5
    assert hangs._cpu_seconds(2**22 + 1) == 0.0
