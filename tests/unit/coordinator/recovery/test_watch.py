"""What is asked of a pod that starts, and what follows from its answers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.coordinator.pod import Held
from slurmckpt.coordinator.recovery import watch
from slurmckpt.coordinator.recovery.watch import Recovery
from slurmckpt.coordinator.step import StepNumbers
from tests.unit.awaiting import until
from tests.unit.coordinator.recovery.stage import Stage


def recovery_of(stage: Stage, events: set[str], slurm: bool = True) -> Recovery:
    stage.incarnation.spec = SimpleNamespace(job=stage.incarnation.spec.job, recover=lambda settings: frozenset(events))
    return Recovery(
        cast(Any, stage.incarnation),
        stage.steps,
        stage.notices,
        cast(Any, stage.slurm) if slurm else None,
        cast(Any, stage.checkpointer),
        StepNumbers(),
    )


@pytest.mark.parametrize(
    ("events", "slurm", "told"),
    [
        ({"crash", "preempt"}, True, "hold True 4000"),
        ({"crash"}, True, "hold True 0"),
        ({"preempt"}, True, "hold False 4000"),
        # Nobody could say whether a signal is a preemption.
        ({"crash", "preempt"}, False, "hold True 0"),
        ({"nodefail", "hang", "timelimit"}, True, "hold False 0"),
        (set(), True, "hold False 0"),
    ],
)
def test_what_a_pod_holds(tmp_path: Path, events: set[str], slurm: bool, told: str) -> None:
    stage = Stage(tmp_path)
    asyncio.run(recovery_of(stage, events, slurm).watch(stage.step, stage.pod))
    assert stage.pod.told == [told]


def test_what_is_held_is_decided(tmp_path: Path) -> None:
    stage = Stage(tmp_path, tasks=2)
    stage.slurm.configuration["PreemptType"] = "preempt/qos"
    recovery = recovery_of(stage, {"crash", "preempt"})

    async def scene() -> None:
        await recovery.watch(stage.step, stage.pod)
        works = [asyncio.ensure_future(work) for work in recovery.works()]
        assert stage.pod.on_held is not None
        stage.pod.exits[0] = 11
        stage.pod.on_held(Held(0, status=11))
        stage.pod.on_held(Held(1, 15))
        await until(lambda: len(stage.pod.told) == 3)
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    asyncio.run(scene())
    assert sorted(stage.pod.told[1:]) == ["pass 0", "pass 1 signal 15"]


def test_pipes_are_kept_open_once_there_is_something_to_go_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before: until then a pipe ends when its last writer does. And not one that the task has closed by now."""
    stage = Stage(tmp_path)
    reader, writer = os.pipe()
    stage.step.streams.relayed.append(writer)
    in_use: set[int] = set()
    monkeypatch.setattr(watch, "pipes_in_use", lambda pod: in_use)
    recovery = recovery_of(stage, {"crash"})

    async def scene() -> None:
        await recovery.watch(stage.step, stage.pod)
        assert stage.step.streams.kept_open == {}
        (committed,) = stage.checkpointer.committed
        manifest = await stage.checkpointer.take()
        await committed(manifest)
        assert stage.step.streams.kept_open == {}
        in_use.add(os.fstat(writer).st_ino)
        await committed(manifest)
        assert set(stage.step.streams.kept_open) == in_use
        in_use.clear()
        await committed(manifest)
        assert stage.step.streams.kept_open == {}

    asyncio.run(scene())
    os.close(reader)
    os.close(writer)


def test_a_restored_step_can_go_back_to_where_it_came_from(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.step.restored_from = 4
    stage.incarnation.plan = SimpleNamespace(manifest=stage.checkpointer.manifest(4), open_steps=set())
    recovery = recovery_of(stage, {"preempt"})
    asyncio.run(recovery.watch(stage.step, stage.pod))
    assert stage.checkpointer.newest is not None
    assert stage.checkpointer.newest.seq == 4


@pytest.mark.parametrize(
    ("events", "preempt_time", "known"),
    [({"nodefail"}, 1.0, True), ({"nodefail"}, 0.0, False), ({"preempt"}, 1.0, False)],
)
def test_at_its_end(tmp_path: Path, events: set[str], preempt_time: float, known: bool) -> None:
    """Slurm is only asked where the answer decides whether the job is restored."""
    stage = Stage(tmp_path)
    stage.slurm.change(preempt_time=preempt_time)
    recovery = recovery_of(stage, events)
    asyncio.run(recovery.end())
    assert recovery.preempted is known
    assert stage.slurm.asked == ("preempt" not in events)
