"""A job is requeued before its time limit, once it has a checkpoint of this run; and told when that cannot be."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from slurmckpt.config import Recover
from slurmckpt.coordinator.choice import Skipped
from slurmckpt.coordinator.recovery import deadline as deadlines
from slurmckpt.coordinator.recovery.deadline import Deadline
from slurmckpt.coordinator.recovery.preemption import Preemption
from slurmckpt.errors import SlurmError
from tests.unit.awaiting import until
from tests.unit.coordinator.recovery.stage import Stage

SOON = Recover(margin=60.0, look_every=0.02)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_NEAR_SECONDS", 0.01)
    monkeypatch.setattr(deadlines, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(deadlines, "_FAR_SECONDS", 0.02)


def limited(stage: Stage, left: float, **changes: Any) -> None:
    """The job has ten minutes, of which so many seconds are left."""
    now = time.time()
    stage.slurm.change(time_limit=10, start_time=now + left - 600, end_time=now + left, **changes)


def deadline_of(stage: Stage) -> Deadline:
    return Deadline(stage.scene, Preemption(stage.scene))


def run_to_its_end(stage: Stage) -> None:
    async def scene() -> None:
        deadline = deadline_of(stage)
        deadline.started.set()
        await asyncio.wait_for(deadline.run(), 60)

    asyncio.run(scene())


def look_for_a_while(stage: Stage, looks: int = 4) -> None:
    """Let it ask Slurm some times; it must not end by itself."""

    async def scene() -> None:
        deadline = deadline_of(stage)
        deadline.started.set()
        running = asyncio.create_task(deadline.run())
        asked = stage.slurm.asked
        await until(lambda: stage.slurm.asked >= asked + looks)
        assert not running.done()
        running.cancel()

    asyncio.run(scene())


def test_a_requeue_in_time(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SOON)
    limited(stage, 59)
    run_to_its_end(stage)
    assert stage.slurm.requeued == [7]
    assert stage.noted == ["requeued before its time limit, to go on from #1"]
    assert stage.said == []


def test_what_a_checkpoint_takes_counts(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SOON)
    limited(stage, 170)
    look_for_a_while(stage)
    assert stage.checkpointer.taken == 0
    stage.checkpointer.seconds = [10.0, 60.0, 20.0]
    run_to_its_end(stage)
    assert stage.slurm.requeued == [7]


def test_half_of_a_short_run_is_work(tmp_path: Path) -> None:
    """Otherwise the job would be requeued as soon as it starts, again and again."""
    stage = Stage(tmp_path, Recover(margin=3600.0, look_every=0.02))
    limited(stage, 310)
    look_for_a_while(stage)
    assert stage.checkpointer.taken == 0
    limited(stage, 299)
    run_to_its_end(stage)
    assert stage.slurm.requeued == [7]


def test_a_job_without_a_time_limit(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SOON)
    look_for_a_while(stage)
    assert (stage.checkpointer.taken, stage.noted) == (0, [])


def test_a_time_limit_that_is_moved_while_the_checkpoint_is_taken(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SOON)
    limited(stage, 59)
    take = stage.checkpointer.take

    async def taken() -> Any:
        limited(stage, 500)
        return await take()

    stage.checkpointer.take = taken  # type: ignore[method-assign]
    look_for_a_while(stage)
    assert (stage.checkpointer.taken, stage.slurm.requeued) == (1, [])


def test_a_checkpoint_is_tried_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SOON)
    limited(stage, 59)
    stage.checkpointer.errors = [Skipped("one"), Skipped("two")]
    run_to_its_end(stage)
    assert stage.slurm.requeued == [7]


@pytest.mark.parametrize("epoch", [1, 2])
def test_only_a_checkpoint_of_this_run_lets_it_go_on(tmp_path: Path, epoch: int) -> None:
    """Otherwise the next run would be this one over again."""
    stage = Stage(tmp_path, SOON)
    stage.checkpointer.newest = stage.checkpointer.manifest(1)
    stage.incarnation.epoch = epoch
    limited(stage, 5.5)
    stage.checkpointer.errors = [Skipped("no")] * 1000
    run_to_its_end(stage)
    if epoch == 1:
        assert stage.noted == ["requeued before its time limit, to go on from #1"]
    else:
        assert stage.said == ["the time limit will end this job for good: no checkpoint could be taken before it"]
    assert stage.slurm.requeued == [7] * (epoch == 1)


@pytest.mark.parametrize(
    ("changes", "reason", "taken"),
    [
        ({"requeue": False}, "it may not be requeued (--no-requeue, or JobRequeue=0 in slurm.conf)", 0),
        ({"restart_count": 5}, "it has been requeued 5 times, and MaxBatchRequeue=5 allows no more", 1),
        ({"restart_count": 9}, "it has been requeued 9 times, and MaxBatchRequeue=5 allows no more", 1),
    ],
)
def test_the_end_of_a_chain_is_told_at_its_start(
    tmp_path: Path, changes: dict[str, Any], reason: str, taken: int
) -> None:
    stage = Stage(tmp_path, SOON)
    limited(stage, 500, **changes)
    look_for_a_while(stage)
    noted = [f"the time limit (10m 00s) will end this job for good: {reason}"]
    # Of --no-requeue the job has been told at its start.
    said = noted if changes.get("requeue", True) else []
    assert (stage.said, stage.noted, stage.checkpointer.taken) == (said, noted, 0)
    limited(stage, 50)
    run_to_its_end(stage)
    # What could still be requeued by hand has a last checkpoint all the same.
    assert (stage.said, stage.checkpointer.taken, stage.slurm.requeued) == (said, taken, [])


def test_a_requeue_that_slurm_refuses(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SOON)
    limited(stage, 59)
    stage.slurm.requeue_error = SlurmError("scontrol requeue: Requested operation is presently disabled")
    run_to_its_end(stage)
    assert stage.said == [
        "the time limit will end this job for good: it cannot be requeued:"
        " scontrol requeue: Requested operation is presently disabled"
    ]


def test_without_the_event(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SOON, events=frozenset({"nodefail", "crash"}))
    limited(stage, 1)
    run_to_its_end(stage)
    assert (stage.slurm.asked, stage.checkpointer.taken) == (0, 0)
    stage = Stage(tmp_path, SOON, events=frozenset({"preempt"}))
    limited(stage, 1)
    look_for_a_while(stage)
    assert (stage.checkpointer.taken, stage.noted) == (0, [])


def test_a_controller_that_is_away(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SOON)
    limited(stage, 59)
    info, stage.slurm.job_info = stage.slurm.job_info, None

    async def scene() -> None:
        deadline = deadline_of(stage)
        deadline.started.set()
        running = asyncio.create_task(deadline.run())
        await asyncio.sleep(0.1)
        assert not running.done()
        stage.slurm.job_info = info
        await asyncio.wait_for(running, 60)

    asyncio.run(scene())
    assert stage.slurm.requeued == [7]


@pytest.mark.parametrize("kind", ["preempt/partition_prio", "preempt/qos"])
def test_a_preemption_that_no_signal_tells_of(tmp_path: Path, kind: str) -> None:
    """The batch script gets none."""
    stage = Stage(tmp_path, SOON)
    stage.slurm.configuration["PreemptType"] = kind
    stage.slurm.grace = 60.0
    look_for_a_while(stage)
    stage.slurm.change(preempt_time=time.time(), end_time=time.time() + 60)
    run_to_its_end(stage)
    assert stage.noted == ["preempted; the last checkpoint is #1"]
    assert stage.slurm.requeued == []


def test_where_nothing_can_preempt_no_signal_is_held(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SOON)
    look_for_a_while(stage)
    assert stage.pod.told == ["hold True 0"]
    stage = Stage(tmp_path, SOON)
    stage.slurm.configuration["PreemptType"] = "preempt/qos"
    look_for_a_while(stage)
    assert stage.pod.told == []


def test_how_often_slurm_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_FAR_SECONDS", 300.0)
    monkeypatch.setattr(deadlines, "_NEAR_SECONDS", 1.0)
    stage = Stage(tmp_path, Recover(margin=60.0, look_every=30.0))
    deadline = deadline_of(stage)
    job = stage.slurm.job_info
    assert job is not None
    assert deadline._pause(job) == 300
    limited(stage, 560)
    assert stage.slurm.job_info is not None
    assert 249 < deadline._pause(stage.slurm.job_info) <= 250
    limited(stage, 61)
    assert deadline._pause(stage.slurm.job_info) == 1
    deadline._preemptable = True
    assert deadline._pause(job) == 30
    deadline._grace = 20
    assert deadline._pause(job) == 5
    # Without a grace time there is nothing to find out in time.
    deadline._grace = 0
    assert deadline._pause(job) == 300
