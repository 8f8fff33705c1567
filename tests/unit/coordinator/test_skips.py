"""Skipped checkpoints: each kind of reason is told once, and counted each time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from slurmckpt.coordinator.journal import Journal
from slurmckpt.coordinator.notices import Notices
from slurmckpt.coordinator.skips import Skips, kind
from slurmckpt.store.record import SkippedNote

RING, DISK = "process 101 (python) uses io_uring", "the staging disk has 1.5 GiB free"


class FakeJournal:
    """What the record would hold. broken: whether it can be written."""

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.events: list[str] = []
        self.note: SkippedNote | None = None

    async def event(self, text: str) -> None:
        if self.broken:
            raise OSError(30, "Read-only file system")
        self.events.append(text)

    async def skipped(self, note: SkippedNote | None) -> None:
        if self.broken:
            raise OSError(30, "Read-only file system")
        self.note = note


def play(*reasons: str | None, broken: bool = False) -> tuple[FakeJournal, list[str]]:
    """Skip checkpoints for these reasons; None stands for one that is taken. What was written, and what was said."""
    journal, notices = FakeJournal(broken), Notices()
    skips = Skips(7, cast(Journal, journal), notices)

    async def run() -> None:
        for reason in reasons:
            if reason is None:
                await skips.over()
            else:
                await skips.one(reason, [])

    asyncio.run(run())
    return journal, cast(Any, notices)._waiting


def test_the_same_reason_with_other_numbers_is_counted() -> None:
    journal, said = play(RING, RING.replace("101", "102"), RING)
    assert said == [f"checkpoint skipped: {RING}"]
    assert journal.events == said
    assert journal.note is not None
    assert (journal.note.reason, journal.note.times) == (RING, 3)
    assert journal.note.since <= journal.note.last


def test_another_reason_is_told_and_counted_anew() -> None:
    journal, said = play(RING, RING, DISK)
    assert said == [f"checkpoint skipped: {RING}", f"checkpoint skipped: {DISK}"]
    assert journal.note is not None
    assert (journal.note.reason, journal.note.times) == (DISK, 1)


def test_reasons_that_take_turns_are_told_once_each() -> None:
    _, said = play(RING, DISK, RING, DISK)
    assert said == [f"checkpoint skipped: {RING}", f"checkpoint skipped: {DISK}"]


def test_after_a_checkpoint_it_is_told_again() -> None:
    journal, said = play(RING, None)
    assert journal.note is None
    journal, said = play(RING, RING, None, RING)
    assert said == [f"checkpoint skipped: {RING}"] * 2
    assert journal.note is not None
    assert journal.note.times == 1


def test_a_record_that_cannot_be_written_keeps_nobody_from_being_told() -> None:
    _, said = play(RING, None, RING, broken=True)
    assert said == [f"checkpoint skipped: {RING}"] * 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("needs 1.25 GiB", "needs 300 GiB", True),
        ("holds pipe:[12]", "holds pipe:[9999]", True),
        ("cannot map 0x7f3a10", "cannot map 0x7f00ff", True),
        ("task 1f2e of rank 3", "task 30 of rank 12", True),
        ("logs/20261129-120000-dump.log", "logs/20261130-000001-dump.log", True),
        ("python3 uses it", "python uses it", False),
        ("process 1 (a)", "process 1 (b)", False),
    ],
)
def test_kinds(one: str, other: str, same: bool) -> None:
    assert (kind(one) == kind(other)) is same
