"""The node feature in the job's AdminComment: it is there after each checkpoint, and nobody waits for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.coordinator import featurenote
from slurmckpt.coordinator.featurenote import FeatureNote
from slurmckpt.errors import SlurmError
from slurmckpt.slurm.port import SlurmPort

FEATURE = "slurmckpt-0123456789ab"


class Controller:
    """The AdminComment of one job, which others write, too. answers: while it is set. asked: how often."""

    def __init__(self) -> None:
        self.comment = ""
        self.answers = asyncio.Event()
        self.answers.set()
        self.error: Exception | None = None
        self.asked = 0

    async def job(self, job_id: int) -> Any:
        assert job_id == 7
        self.asked += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return SimpleNamespace(admin_comment=self.comment)

    async def set_admin_comment(self, job_id: int, text: str) -> None:
        self.comment = text

    def note(self) -> FeatureNote:
        return FeatureNote(cast(SlurmPort, self), 7, FEATURE)


async def noted(note: FeatureNote) -> None:
    note.begin()
    await asyncio.wait_for(note.settled(), 2)


def test_it_is_noted_again_when_somebody_has_written_over_it() -> None:
    async def scene() -> None:
        controller = Controller()
        note = controller.note()
        for text in ("", "", "of the site"):
            controller.comment = text
            await noted(note)
            assert controller.comment == f"{text} slurmckpt:feature={FEATURE}".strip()

    asyncio.run(scene())


def test_a_question_under_way_is_not_asked_twice() -> None:
    async def scene() -> None:
        controller = Controller()
        controller.answers.clear()
        note = controller.note()
        for _ in range(3):
            note.begin()
            await asyncio.sleep(0)
        assert (controller.asked, controller.comment) == (1, "")
        controller.answers.set()
        await asyncio.wait_for(note.settled(), 2)
        assert controller.comment == f"slurmckpt:feature={FEATURE}"

    asyncio.run(scene())


@pytest.mark.parametrize("error", [None, SlurmError("no such job"), OSError("no scontrol")])
def test_after_a_failure_the_next_one_does(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without an answer, and with one that is none."""
    monkeypatch.setattr(featurenote, "_SECONDS", 0.05)

    async def scene() -> None:
        controller = Controller()
        note = controller.note()
        if error is None:
            controller.answers.clear()
        controller.error = error
        await noted(note)
        assert controller.comment == ""
        assert f"job 7: the node feature cannot be noted: {error or 'Slurm does not answer'}" in caplog.text
        controller.answers.set()
        controller.error = None
        await noted(note)
        assert controller.comment == f"slurmckpt:feature={FEATURE}"

    asyncio.run(scene())


def test_where_nobody_can_be_told_nothing_happens() -> None:
    asyncio.run(noted(FeatureNote(None, 7, FEATURE)))
