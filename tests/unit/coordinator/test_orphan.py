"""A coordinator that no epilog has told finds out from Slurm, and only when it is sure."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from typing import cast

import pytest

from slurmckpt.coordinator import orphan
from slurmckpt.coordinator.spec import JobSpec, Options
from slurmckpt.coordinator.step import Step
from slurmckpt.errors import NoSuchJobError, SlurmError
from slurmckpt.identity import JobIdentity
from slurmckpt.slurm.port import JobInfo, SlurmPort
from tests.unit.coordinator.parts import GID, UID, hello

RUNNING = JobInfo(7, "7", frozenset({"RUNNING"}), 1, "", "", ("n1",), 1, "debug", 0, "", True)


class FakeSlurm:
    """Gives one answer after the other, then says that it does not answer."""

    def __init__(self, answers: list[JobInfo | SlurmError]) -> None:
        self.answers: Iterator[JobInfo | SlurmError] = iter(answers)
        self.asked = 0

    async def job(self, job_id: int) -> JobInfo:
        assert job_id == 7
        self.asked += 1
        answer = next(self.answers, SlurmError("slurmctld does not answer"))
        if isinstance(answer, SlurmError):
            raise answer
        return answer


def changed(**values: object) -> JobInfo:
    return dataclasses.replace(RUNNING, **values)  # type: ignore[arg-type]


ELSEWHERE = changed(nodes=("n2",))
ENDED = changed(state=frozenset({"COMPLETED"}))
AGAIN = changed(restart_count=1)
UNKNOWN = NoSuchJobError("Slurm knows no job 7")
SILENCE = SlurmError("slurmctld does not answer")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphan, "_LOOK_SECONDS", 0.001)


def looks(spec: JobSpec, answers: list[JobInfo | SlurmError], steps: dict[str, Step] | None = None) -> int | None:
    """How often Slurm was asked until the coordinator was sure; None when it never was."""
    slurm = FakeSlurm(answers)

    async def scene() -> int | None:
        watching = asyncio.create_task(orphan.left_behind(spec, steps or {}, cast(SlurmPort, slurm)))
        while not watching.done() and slurm.asked <= len(answers):
            await asyncio.sleep(0.001)
        if watching.done():
            return slurm.asked
        watching.cancel()
        return None

    return asyncio.run(asyncio.wait_for(scene(), 60))


@pytest.fixture
def spec() -> JobSpec:
    return JobSpec(JobIdentity("c", "jane", UID, GID, 7), "n1", 1, 0, Options())


@pytest.mark.parametrize("gone", [ELSEWHERE, ENDED, AGAIN, UNKNOWN], ids=["elsewhere", "ended", "again", "unknown"])
def test_a_job_that_has_left(spec: JobSpec, gone: JobInfo | SlurmError) -> None:
    assert looks(spec, [gone, gone]) == 2
    assert looks(spec, [RUNNING, gone, SILENCE, gone]) == 4


def test_a_job_that_is_still_here(spec: JobSpec) -> None:
    completing = changed(state=frozenset({"COMPLETED", "COMPLETING"}))
    assert looks(spec, [RUNNING, completing, ENDED, RUNNING, ENDED]) is None
    assert looks(spec, [SILENCE, SILENCE, SILENCE]) is None


def test_a_step_that_starts_is_waited_for(spec: JobSpec) -> None:
    slurm = FakeSlurm([ENDED, ENDED])
    step = Step.of(hello(), "0")

    async def scene() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(orphan.left_behind(spec, {"0": step}, cast(SlurmPort, slurm)), 0.1)
        assert slurm.asked == 0
        step.closed = True
        await orphan.left_behind(spec, {"0": step}, cast(SlurmPort, slurm))

    asyncio.run(scene())
