"""A preempted job takes a last checkpoint before its ranks get their signal; any other signal passes at once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from slurmckpt.coordinator.choice import Skipped
from slurmckpt.coordinator.pod import Held
from slurmckpt.coordinator.recovery.preemption import HeldSignal, Preemption
from tests.unit.awaiting import until
from tests.unit.coordinator.recovery.stage import Stage


def passed(stage: Stage, count: int = 1) -> Preemption:
    """Hold SIGTERM of so many tasks, and wait until each is passed."""
    preemption = Preemption(stage.scene)

    async def scene() -> None:
        running = asyncio.create_task(preemption.run())
        for index in range(count):
            preemption.take(HeldSignal(stage.pod, Held(index, 15)))
        await until(lambda: sum(line.startswith("pass ") for line in stage.pod.told) == count)
        running.cancel()

    asyncio.run(scene())
    return preemption


def test_a_preemption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, now = Stage(tmp_path, tasks=2), time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    stage.slurm.change(preempt_time=now, end_time=now + 65)
    assert passed(stage, 2).noticed
    # All but a reserve of the grace time: for so long the signals may wait.
    assert stage.pod.told == ["hold True 4000 60 s", "pass 0 signal 15", "pass 1 signal 15"]
    assert stage.checkpointer.taken == 1
    assert stage.noted == ["preempted; the last checkpoint is #1"]


def test_a_grace_time_that_is_nearly_over(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.slurm.change(preempt_time=time.time(), end_time=time.time() + 3)
    passed(stage)
    assert stage.pod.told == ["hold True 4000", "pass 0 signal 15"]


@pytest.mark.parametrize("state", [{"RUNNING"}, {"CANCELLED", "COMPLETING"}, {"TIMEOUT", "COMPLETING"}, None])
def test_a_signal_that_is_no_preemption(tmp_path: Path, state: set[str] | None) -> None:
    stage = Stage(tmp_path)
    if state is None:
        stage.slurm.job_info = None
    else:
        stage.slurm.change(state=frozenset(state))
    assert not passed(stage).noticed
    assert (stage.pod.told, stage.checkpointer.taken) == (["pass 0 signal 15"], 0)


def test_a_last_checkpoint_that_is_not_taken(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.slurm.change(preempt_time=time.time(), end_time=time.time() + 65)
    stage.checkpointer.errors = [Skipped("output on its way did not settle")]
    passed(stage)
    assert stage.noted == ["preempted, without a last checkpoint: output on its way did not settle"]


def test_a_fault_of_ours_does_not_keep_the_signal(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.slurm.change(preempt_time=time.time(), end_time=time.time() + 65)
    stage.checkpointer.errors = [KeyError("a fault of ours")]
    passed(stage)
    assert stage.pod.told[-1] == "pass 0 signal 15"


def test_there_is_only_one_last_checkpoint(tmp_path: Path) -> None:
    """Whoever notices the preemption, and however often."""
    stage = Stage(tmp_path)
    preemption = Preemption(stage.scene)

    async def scene() -> None:
        await asyncio.gather(preemption.take_last_checkpoint(), preemption.take_last_checkpoint())
        await preemption.take_last_checkpoint()
        await preemption.end()

    asyncio.run(scene())
    assert stage.checkpointer.taken == 1


def test_a_job_that_ends_does_not_wait_for_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    preemption = Preemption(stage.scene)

    async def scene() -> None:
        await stage.checkpointer.one_at_a_time.acquire()

        async def never() -> None:
            await stage.checkpointer.one_at_a_time.acquire()

        stage.checkpointer.take = never  # type: ignore[assignment, method-assign]
        noticing = asyncio.create_task(preemption.take_last_checkpoint())
        await asyncio.sleep(0.01)
        noticing.cancel()
        await asyncio.wait_for(preemption.end(), 60)

    asyncio.run(scene())
    assert preemption.noticed
