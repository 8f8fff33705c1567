"""The steps of an attempt as `slurmckpt status` shows them."""

from __future__ import annotations

import pytest

from slurmckpt.cli.steps import summary
from slurmckpt.store.record import StepNote


def ended(*names: str, status: int = 0) -> list[StepNote]:
    return [StepNote(name, 1, "ended", status) for name in names]


@pytest.mark.parametrize(
    ("notes", "text"),
    [
        ([], ""),
        ([StepNote("batch", 1, "running")], "batch: running"),
        ([StepNote("batch", 1, "running"), *ended("0", "1", "2")], "batch: running, 0-2: ended (0)"),
        ([*ended("0", "1"), *ended("2", status=0x300), *ended("3")], "0-1: ended (0), 2: ended (3), 3: ended (0)"),
        ([*ended("7", "9", "10"), StepNote("11", 1, "running")], "7: ended (0), 9-10: ended (0), 11: running"),
        (ended("0", "1", status=9), "0-1: ended (signal 9)"),
        # The record is the user's: any text may stand there.
        (ended("9" * 5000, "1"), f"{'9' * 5000}: ended (0), 1: ended (0)"),
        (ended("\u00b2", "\u00b3", "x", ""), "\u00b2: ended (0), \u00b3: ended (0), x: ended (0), : ended (0)"),
    ],
)
def test_summary(notes: list[StepNote], text: str) -> None:
    assert summary(notes) == text
