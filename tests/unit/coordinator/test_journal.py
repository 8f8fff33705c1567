"""What is written down of a job, in a real store; and that nothing depends on it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurmckpt.coordinator.journal import Journal
from slurmckpt.coordinator.spec import JobSpec, Options
from slurmckpt.identity import JobIdentity
from slurmckpt.store import lease, record
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore
from slurmckpt.store.manifest import StoredFile
from slurmckpt.store.record import Attempt, CheckpointNote, Record, StepNote
from tests.unit.store.world import World


@pytest.fixture
def world(home: Path, user_files: UserFiles) -> Iterator[World]:
    status = home.stat()
    store = JobStore(home, JobIdentity("cluster", "jane", status.st_uid, status.st_gid, 4711))
    asyncio.run(store.prepare(user_files, by_root=False))
    yield World(home, store.job, store, user_files, home)


def spec(world: World, node: str) -> JobSpec:
    return JobSpec(world.job, node, 1, 0, Options())


def written(world: World) -> Record:
    return asyncio.run(record.load(world.store, world.files))


def test_the_newest_of_very_many_steps_are_noted(world: World) -> None:
    """A script of ten thousand short sruns must not write a megabyte twice for each."""

    async def scene() -> None:
        journal = await Journal.open(world.store, world.files, spec(world, "n1"), 1)
        await journal.step("batch", 1, "running", None)
        await journal.step("0", 1, "running", None)
        for number in range(1, 150):
            await journal.step(str(number), 1, "running", None)
            await journal.step(str(number), 1, "ended", 0)
        await journal.step("0", 1, "ended", 0)

    asyncio.run(scene())
    steps = [note.step for note in written(world).attempts[-1].steps]
    assert steps == ["batch", "0", *map(str, range(52, 150))]


def test_an_incarnation_and_the_next(world: World) -> None:
    manifest = replace(
        world.manifest(3),
        epoch=1,
        created=1000.0,
        files=[StoredFile("a", 100, 0o600, "0" * 64, "zstd", 40), StoredFile("b", 50, 0o600, "0" * 64, "plain", 50)],
    )

    async def first() -> None:
        journal = await Journal.open(world.store, world.files, spec(world, "n1"), 1)
        await journal.step("0", 2, "running", None)
        await journal.checkpoint(manifest, 0.5, 0.25)
        await journal.event("checkpoint skipped: a\nb")
        await journal.step("0", 2, "ended", 9)
        await journal.stopped()
        await journal.ended("NODE_FAIL")

    async def second() -> None:
        journal = await Journal.open(world.store, world.files, spec(world, "n2"), 2)
        await journal.restored(manifest, 0.1, ["#4: changed"])
        await journal.restored(manifest, 0.2, ["#4: changed"])

    asyncio.run(first())
    one = written(world)
    (attempt,) = one.attempts
    assert (attempt.epoch, attempt.node, attempt.outcome) == (1, "n1", "NODE_FAIL")
    assert attempt.ended is not None and attempt.ended >= attempt.started > 1_700_000_000
    assert attempt.steps == [StepNote("0", 2, "ended", 9)]
    assert one.checkpoints == [CheckpointNote(3, 1, 1000.0, 150, 90, 0.28, 0.5, 0.25, ["0"], "n1")]
    assert [event.text for event in one.events] == ["checkpoint skipped: a\\nb"]

    asyncio.run(second())
    two = written(world)
    assert two.attempts[0] == attempt
    assert (two.attempts[1].node, two.attempts[1].restored_from) == ("n2", 3)
    assert two.attempts[1].restored_seconds == pytest.approx(0.3)
    assert two.attempts[1].refused == ["#4: changed"]
    # Work since the checkpoint: until the first attempt's end.
    assert two.attempts[1].lost_seconds == pytest.approx(attempt.ended - 1000.0)


def test_work_that_is_lost_is_not_guessed_when_a_node_died_without_a_word(world: World) -> None:
    async def scene() -> None:
        await Journal.open(world.store, world.files, spec(world, "n1"), 1)
        journal = await Journal.open(world.store, world.files, spec(world, "n2"), 2)
        await journal.restored(replace(world.manifest(1), epoch=1), 0.1, [])

    asyncio.run(scene())
    assert written(world).attempts[1].lost_seconds is None


def test_a_cold_start(world: World) -> None:
    async def scene() -> None:
        journal = await Journal.open(world.store, world.files, spec(world, "n1"), 2)
        await journal.cold_start("no checkpoint fits: #1: changed", ["#1: changed"])

    asyncio.run(scene())
    (attempt,) = written(world).attempts
    assert (attempt.cold_start, attempt.refused) == ("no checkpoint fits: #1: changed", ["#1: changed"])


def test_the_time_of_the_stop_counts_and_not_that_of_the_question_to_slurm(world: World) -> None:
    async def scene() -> tuple[float | None, float | None]:
        journal = await Journal.open(world.store, world.files, spec(world, "n1"), 1)
        await journal.stopped()
        first = (await record.load(world.store, world.files)).attempts[0].ended
        await journal.ended("COMPLETED")
        return first, (await record.load(world.store, world.files)).attempts[0].ended

    stopped, ended = asyncio.run(scene())
    assert stopped is not None and stopped == ended


def test_a_job_of_weeks_does_not_outgrow_what_is_read_again(world: World) -> None:
    async def scene() -> None:
        journal = await Journal.open(world.store, world.files, spec(world, "n1"), 1)
        kept = Record(4711, "jane", "cluster", attempts=[Attempt(1, "n1", 1.0)])
        kept.checkpoints = [CheckpointNote(n, 1, float(n), 1, 1, 0.1, 0.1, 0.1, ["0"], "n1") for n in range(1, 5000)]
        journal = Journal(world.store, world.files, kept, kept.attempts[0])
        await journal.checkpoint(world.manifest(5000), 0.1, 0.1)

    asyncio.run(scene())
    assert [note.seq for note in written(world).checkpoints] == list(range(4001, 5001))


def test_a_record_that_cannot_be_written_stops_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        journal = await Journal.open(world.store, world.files, spec(world, "n1"), 1)
        os.rename(world.store.dir, world.store.dir.with_name("gone"))
        await journal.event("text")
        await journal.ended("COMPLETED")

    asyncio.run(scene())
    assert caplog.text.count("the job's record cannot be written: ") == 2


@pytest.mark.parametrize(("node", "ends", "expected"), [("n2", False, True), ("n2", True, False), ("n1", False, False)])
def test_whether_the_incarnation_before_may_still_run(world: World, node: str, ends: bool, expected: bool) -> None:
    """Not where its end was seen, and not on this very node, where the prolog has ended what was left of it."""

    async def scene() -> bool:
        first = await Journal.open(world.store, world.files, spec(world, "n1"), 1)
        assert not first.follows_a_lost_one
        if ends:
            await first.stopped()
        return (await Journal.open(world.store, world.files, spec(world, node), 2)).follows_a_lost_one

    assert asyncio.run(scene()) is expected


def test_where_the_record_is_gone_the_incarnation_before_may_still_run(world: World) -> None:
    journal = asyncio.run(Journal.open(world.store, world.files, spec(world, "n1"), 2))
    assert journal.follows_a_lost_one and not journal.knows_earlier_ones


def test_the_record_of_a_newer_incarnation_is_not_overwritten(world: World) -> None:
    """A node that was given up for dead has a copy from before, and goes on."""

    async def scene() -> None:
        epochs = [await lease.take(world.store, world.files, "n1")]
        old = await Journal.open(world.store, world.files, spec(world, "n1"), epochs[0])
        epochs.append(await lease.take(world.store, world.files, "n2"))
        new = await Journal.open(world.store, world.files, spec(world, "n2"), epochs[1])
        await new.event("of the new one")
        await old.step("0", 1, "ended", 9)

    asyncio.run(scene())
    found = written(world)
    assert [attempt.node for attempt in found.attempts] == ["n1", "n2"]
    assert [event.text for event in found.events] == ["of the new one"]


def test_an_attempt_that_never_ended_is_lost(tmp_path: Path) -> None:
    """Its node died: nobody wrote an end."""
    first = [record.Attempt(epoch=1, node="n1", started=1.0, steps=[record.StepNote("0", 2, "running")])]
    done = record.Attempt(epoch=2, node="n2", started=2.0, ended=3.0, outcome="requeued")
    kept = record.Record(1, "jane", "c", attempts=[*first, done])
    Journal.mark_lost(kept)
    assert (kept.attempts[0].outcome, kept.attempts[0].steps[0].state) == ("lost", "lost")
    assert kept.attempts[1].outcome == "requeued"


def test_what_a_restored_incarnation_has_achieved(world: World) -> None:
    manifest = replace(world.manifest(3), epoch=1, created=1000.0)

    async def first() -> None:
        journal = await Journal.open(world.store, world.files, spec(world, "n1"), 1)
        assert journal.without_progress is None
        await journal.checkpoint(manifest, 0.5, 0.25)

    async def second() -> None:
        journal = await Journal.open(world.store, world.files, spec(world, "n2"), 2)
        assert journal.without_progress is None
        await journal.restored(manifest, 0.1, [])
        assert journal.without_progress == 3
        await journal.checkpoint(replace(manifest, seq=4, epoch=2), 0.5, 0.25)
        assert journal.without_progress is None

    asyncio.run(first())
    asyncio.run(second())


def test_removed_checkpoints_are_remembered_until_there_are_new_ones(world: World) -> None:
    async def scene() -> None:
        journal = await Journal.open(world.store, world.files, spec(world, "n1"), 1)
        assert journal.removed == ""
        await journal.gone("when it had ended (COMPLETED)")
        journal = await Journal.open(world.store, world.files, spec(world, "n1"), 2)
        assert journal.removed == "when it had ended (COMPLETED)"
        await journal.checkpoint(replace(world.manifest(3), epoch=2), 0.5, 0.25)
        assert journal.removed == ""

    asyncio.run(scene())
