"""The timer of checkpoints: it goes on whatever happens, and stands still with its job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurmckpt.coordinator import checkpoints, group, schedule
from slurmckpt.coordinator.choice import Skipped
from slurmckpt.coordinator.step import Step
from slurmckpt.errors import StoreError
from slurmckpt.store.lease import LeaseLost
from tests.unit.coordinator.checkpointing import Stage


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def test_the_timer_goes_on_after_whatever_went_wrong(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Step, "running", property(lambda step: True))
    monkeypatch.setattr(schedule, "seconds_until_next", lambda *_: 0.001)
    outcomes = iter([Skipped("no"), KeyError("a fault of ours"), StoreError("full"), OSError(5, "io")])

    async def scene() -> None:
        done = asyncio.Event()
        real = stage._capture

        async def capture(*args: Any) -> group.Captured:
            for error in outcomes:
                raise error
            done.set()
            return await real(*args)

        monkeypatch.setattr(group, "capture", capture)
        keeping = asyncio.create_task(stage.checkpointer.keep_time())
        await asyncio.wait_for(done.wait(), 60)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(scene())
    assert "a fault of ours" in caplog.text


def test_the_timer_ends_with_the_lease(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Step, "running", property(lambda step: True))
    monkeypatch.setattr(schedule, "seconds_until_next", lambda *_: 0.001)
    stage.lease_error = LeaseLost("newer")
    asyncio.run(asyncio.wait_for(stage.checkpointer.keep_time(), 60))
    assert stage.lost == ["newer"]


class Clock:
    """A loop's time in which sleeping takes none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.real = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await self.real(0)


def timer(stage: Stage, monkeypatch: pytest.MonkeyPatch, at: Callable[[float], bool]) -> list[float]:
    """When checkpoints are taken with an interval of 10 s, in the first 40 s. at: whether the job is suspended then."""
    moments: list[float] = []
    clock = Clock(monkeypatch)
    monkeypatch.setattr(Step, "running", property(lambda step: True))
    monkeypatch.setattr(schedule, "seconds_until_next", lambda *_: 10.0 if clock.now < 40 else None)
    monkeypatch.setattr(checkpoints, "suspended", lambda steps: at(clock.now))

    async def take() -> None:
        moments.append(clock.now)
        stage.checkpointer._taken += 1

    monkeypatch.setattr(stage.checkpointer, "take", take)

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: clock.now)
        await stage.checkpointer.keep_time()

    asyncio.run(scene())
    return moments


def test_the_timer(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert timer(stage, monkeypatch, lambda now: False) == [10, 20, 30, 40]


def test_no_time_passes_for_a_suspended_job(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was left of the interval before is left after."""
    assert timer(stage, monkeypatch, lambda now: 15 < now <= 33) == [10, 38, 48]


def test_a_checkpoint_on_request_puts_off_the_next_one(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def at(now: float) -> bool:
        if now == 17:
            stage.checkpointer._taken += 1
        return False

    assert timer(stage, monkeypatch, at) == [10, 28, 38, 48]


def test_no_timer_where_none_is_wanted(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "seconds_until_next", lambda *_: None)
    asyncio.run(asyncio.wait_for(stage.checkpointer.keep_time(), 60))
    assert stage.captures == 0


def test_nothing_is_taken_while_nothing_runs(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = iter([0.0, 0.0, 0.0, None])
    monkeypatch.setattr(schedule, "seconds_until_next", lambda *_: next(pauses))
    asyncio.run(asyncio.wait_for(stage.checkpointer.keep_time(), 60))
    assert stage.captures == 0
