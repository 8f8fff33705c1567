"""What Slurm says of the job, and what is made of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.coordinator.recovery.stage import Stage


@pytest.mark.parametrize(
    ("state", "ending"),
    [
        ({"RUNNING"}, False),
        ({"RUNNING", "CONFIGURING"}, False),
        ({"SUSPENDED"}, False),
        ({"RUNNING", "COMPLETING"}, True),
        ({"PENDING", "COMPLETING", "REQUEUED"}, True),
        ({"CANCELLED"}, True),
    ],
    ids=lambda value: "+".join(sorted(value)) if isinstance(value, set) else "",
)
def test_whether_the_job_is_ending(tmp_path: Path, state: set[str], ending: bool) -> None:
    stage = Stage(tmp_path)
    stage.slurm.change(state=frozenset(state))
    assert asyncio.run(stage.scene.is_ending()) == ending


def test_a_slurm_that_does_not_answer_ends_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.slurm.job_info = None
    assert not asyncio.run(stage.scene.is_ending())
