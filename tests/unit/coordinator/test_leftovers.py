"""Images of jobs that ended with nobody there go when Slurm says that the jobs are over, or does not know them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.coordinator import leftovers
from slurmckpt.errors import NoSuchJobError, SlurmError
from slurmckpt.slurm.port import SlurmPort
from slurmckpt.store import retention

STATES: dict[int, set[str] | SlurmError] = {
    1: {"COMPLETED"},
    2: {"CANCELLED"},
    3: {"RUNNING"},
    4: {"FAILED"},
    5: {"PENDING", "REQUEUED"},
    6: NoSuchJobError("Slurm knows no job 6"),
    7: {"COMPLETED"},
}


def swept(monkeypatch: pytest.MonkeyPatch, answers: dict[int, set[str] | SlurmError]) -> list[int]:
    """The jobs whose images are removed."""
    removed: list[int] = []

    async def lingering(*_: Any) -> list[Any]:
        return [SimpleNamespace(job=SimpleNamespace(job_id=job_id)) for job_id in answers]

    async def remove_all(other: Any, _: Any) -> None:
        removed.append(other.job.job_id)

    async def job(job_id: int) -> Any:
        answer = answers[job_id]
        if isinstance(answer, SlurmError):
            raise answer
        return SimpleNamespace(state=frozenset(answer))

    monkeypatch.setattr(retention, "lingering", lingering)
    monkeypatch.setattr(retention, "remove_all", remove_all)
    nothing: Any = None
    asyncio.run(leftovers.sweep(nothing, nothing, cast(SlurmPort, SimpleNamespace(job=job))))
    return removed


def test_who_is_over_and_who_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert swept(monkeypatch, STATES) == [1, 2, 6, 7]


def test_a_slurm_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert swept(monkeypatch, {**STATES, 3: SlurmError("slurmctld does not answer")}) == [1, 2]
