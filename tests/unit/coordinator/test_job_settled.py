"""What becomes of a job's images when it is over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.coordinator import job as jobs
from slurmckpt.coordinator import leftovers
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.errors import SlurmckptError, SlurmError
from slurmckpt.store import lease, retention
from slurmckpt.store.lease import LeaseLost
from tests.unit.coordinator.jobs import new_job


class FakeSlurm:
    """states: what it says, each time the next, and the last for ever."""

    def __init__(self, *states: str, error: SlurmckptError | None = None, later: tuple[str, ...] = ()) -> None:
        self.states = [frozenset(states), *([frozenset(later)] if later else [])]
        self.error = error

    async def job(self, job_id: int) -> SimpleNamespace:
        assert job_id == 7
        if self.error is not None:
            raise self.error
        return SimpleNamespace(state=self.states.pop(0) if len(self.states) > 1 else self.states[0])


def settled(
    top: Path,
    monkeypatch: pytest.MonkeyPatch,
    slurm: FakeSlurm | None,
    lost_at: int | None = None,
    preempted: bool = False,
) -> list[str]:
    """What settle() does. lost_at: which look at the lease finds a newer incarnation."""
    events: list[str] = []
    looks = iter(range(10))

    async def check(*_: object) -> None:
        if next(looks) == lost_at:
            raise LeaseLost("newer")

    async def remove_all(*_: object) -> None:
        events.append("images removed")

    async def forget(store: object, files: object, record_days: int) -> None:
        events.append(f"records of {record_days} days forgotten")

    class Journal:
        async def stopped(self) -> None:
            events.append("stopped")

        async def ended(self, outcome: str) -> None:
            events.append(f"ended {outcome}")

        async def gone(self, why: str) -> None:
            events.append(f"gone {why}")

    decides = slurm is not None and len(slurm.states) > 1
    monkeypatch.setattr(jobs, "_DECISION_SECONDS", 60.0 if decides else 0.05)
    monkeypatch.setattr(jobs, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(lease, "check", check)
    monkeypatch.setattr(retention, "remove_all", remove_all)
    monkeypatch.setattr(retention, "forget", forget)

    async def sweep(store: object, files: object, slurm: object) -> None:
        assert slurm is not None and events[-1].endswith("forgotten")

    monkeypatch.setattr(leftovers, "sweep", sweep)

    async def scene() -> None:
        job = new_job(top, slurm)
        files = SimpleNamespace(close=lambda wait: events.append("files closed"))
        job._incarnation = cast(Incarnation, SimpleNamespace(journal=Journal(), files=files, store=None, epoch=1))
        job._recovery = cast(Any, SimpleNamespace(preempted=preempted))
        await job.settle()

    asyncio.run(scene())
    assert events.pop() == "files closed"
    if lost_at is None:
        assert events.pop() == "records of 30 days forgotten"
    return events


@pytest.mark.parametrize("states", [("COMPLETED",), ("CANCELLED", "COMPLETING"), ("COMPLETED", "COMPLETING")])
def test_a_job_that_is_over_leaves_no_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: tuple[str, ...]
) -> None:
    assert settled(tmp_path, monkeypatch, FakeSlurm(*states)) == [
        "stopped",
        f"ended {states[0]}",
        f"gone when it had ended ({states[0]})",
        "images removed",
    ]


@pytest.mark.parametrize(
    ("states", "outcome"),
    [
        (("FAILED",), "FAILED"),
        (("TIMEOUT",), "TIMEOUT"),
        (("NODE_FAIL", "COMPLETING"), "NODE_FAIL"),
        (("PREEMPTED", "REQUEUED"), "requeued"),
        (("CANCELLED", "REQUEUED", "COMPLETING"), "requeued"),
        (("COMPLETED", "REQUEUE_HOLD"), "requeued"),
        (("PENDING", "COMPLETING"), "requeued"),
    ],
)
def test_the_images_of_a_job_that_may_come_back_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: tuple[str, ...], outcome: str
) -> None:
    assert settled(tmp_path, monkeypatch, FakeSlurm(*states)) == ["stopped", f"ended {outcome}"]


def test_a_job_that_is_ending_may_still_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RequeueExit is looked at when the last node is done."""
    slurm = FakeSlurm("FAILED", "COMPLETING", later=("PENDING",))
    assert settled(tmp_path, monkeypatch, slurm) == ["stopped", "ended requeued"]


def test_a_job_that_was_preempted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm("PENDING", "COMPLETING", later=("PENDING",))
    assert settled(tmp_path, monkeypatch, slurm, preempted=True) == ["stopped", "ended preempted"]
    # In its grace time it has completed all the same: then it is over.
    slurm = FakeSlurm("COMPLETED", "COMPLETING", later=("COMPLETED",))
    wanted = ["stopped", "ended COMPLETED", "gone when it had ended (COMPLETED)", "images removed"]
    assert settled(tmp_path, monkeypatch, slurm, preempted=True) == wanted


@pytest.mark.parametrize("slurm", [None, FakeSlurm(error=SlurmError("slurmctld does not answer"))])
def test_images_stay_when_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slurm: FakeSlurm | None
) -> None:
    assert settled(tmp_path, monkeypatch, slurm) == ["stopped", "ended unknown"]


def test_a_job_that_runs_elsewhere_by_now_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settled(tmp_path, monkeypatch, FakeSlurm("COMPLETED"), lost_at=0) == []
    # It may also have started while Slurm was asked.
    assert settled(tmp_path, monkeypatch, FakeSlurm("COMPLETED"), lost_at=1) == ["stopped"]
