"""Taking checkpoints: one at a time, tried again, and never the end of those to come."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.config import Settings, Store
from slurmckpt.coordinator import checkpoints, doubts, group, node
from slurmckpt.coordinator.choice import Doubtful, Ended, Skipped, Unsettled
from slurmckpt.coordinator.featurenote import FeatureNote
from slurmckpt.coordinator.step import Step
from slurmckpt.errors import StoreError
from slurmckpt.slurm.port import SlurmPort
from slurmckpt.store import lease, transfer
from slurmckpt.store.lease import LeaseLost
from tests.unit.coordinator.checkpointing import Stage


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def test_what_is_remembered_of_checkpoints(stage: Stage) -> None:
    told: list[int] = []

    async def committed(manifest: Any) -> None:
        told.append(manifest.seq)

    stage.checkpointer.committed.append(committed)
    assert stage.checkpointer.newest is None
    for _ in range(7):
        asyncio.run(stage.checkpointer.take())
    assert told == [1, 2, 3, 4, 5, 6, 7]
    assert stage.checkpointer.newest is not None and stage.checkpointer.newest.seq == 7
    assert len(stage.checkpointer.seconds) == 5 and all(1.0 <= each < 60 for each in stage.checkpointer.seconds)


def test_a_checkpoint(stage: Stage) -> None:
    manifest = asyncio.run(stage.checkpointer.take())
    assert (manifest.seq, manifest.epoch, manifest.job_id, manifest.node, manifest.attempt) == (1, 3, 7, "n1", 2)
    assert (manifest.created, manifest.freeze_seconds, manifest.interval) == (1000.0, 0.5, "1s")
    assert stage.journal.committed == [1]
    assert stage.left() == []


@pytest.mark.parametrize("retries", [0, 2])
def test_a_commit_is_tried_again_as_often_as_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retries: int
) -> None:
    stage = Stage(tmp_path, monkeypatch, Settings(store=Store(retries=retries)))
    stage.publish_errors = [StoreError(f"disk full {n}") for n in range(retries + 1)]
    with pytest.raises(Skipped, match=f"^disk full {retries}$"):
        asyncio.run(stage.checkpointer.take())
    assert stage.published == retries + 1
    assert stage.journal.events == [f"checkpoint skipped: disk full {retries}"]
    assert stage.left() == []

    stage.publish_errors = [OSError(5, "Input/output error") for _ in range(retries)]
    assert asyncio.run(stage.checkpointer.take()).seq == 2


def test_a_lease_that_is_lost_before_the_capture(stage: Stage) -> None:
    stage.lease_error = LeaseLost("job 7 has a newer incarnation (epoch 4)")
    with pytest.raises(LeaseLost):
        asyncio.run(stage.checkpointer.take())
    assert stage.lost == ["job 7 has a newer incarnation (epoch 4)"]
    assert (stage.captures, stage.published, stage.journal.events) == (0, 0, [])


def test_a_lease_that_is_lost_before_the_commit_is_not_tried_again(stage: Stage) -> None:
    stage.publish_errors = [LeaseLost("newer"), LeaseLost("newer")]
    with pytest.raises(LeaseLost):
        asyncio.run(stage.checkpointer.take())
    assert (stage.published, stage.lost) == (1, ["newer"])
    assert stage.left() == []


@pytest.mark.parametrize(
    "error", [StoreError("1 of the old checkpoints cannot be removed"), OSError(5, "it cannot be listed")]
)
def test_an_old_checkpoint_that_cannot_be_removed_does_not_undo_the_new_one(stage: Stage, error: Exception) -> None:
    stage.prune_error = error
    assert asyncio.run(stage.checkpointer.take()).seq == 1
    assert stage.journal.events == [str(error)]
    assert stage.journal.committed == [1]


def test_a_capture_that_is_skipped_says_why(stage: Stage) -> None:
    stage.capture_error = Skipped("process 101 uses io_uring")
    with pytest.raises(Skipped, match=r"^process 101 uses io_uring$"):
        asyncio.run(stage.checkpointer.take())
    assert stage.journal.events == ["checkpoint skipped: process 101 uses io_uring"]
    assert stage.notices._waiting == ["checkpoint skipped: process 101 uses io_uring"]


def test_a_reason_that_stays_is_told_once_and_again_after_it_has_worked(stage: Stage) -> None:
    async def scene() -> None:
        for number in range(3):
            stage.capture_error = Skipped(f"process {100 + number} uses io_uring")
            with pytest.raises(Skipped):
                await stage.checkpointer.take()
        stage.capture_error = None
        await stage.checkpointer.take()
        stage.capture_error = Skipped("process 104 uses io_uring")
        with pytest.raises(Skipped):
            await stage.checkpointer.take()

    asyncio.run(scene())
    told = ["checkpoint skipped: process 100 uses io_uring", "checkpoint skipped: process 104 uses io_uring"]
    assert (stage.journal.events, stage.notices._waiting) == (told, told)
    counted = [note and (note.reason, note.times) for note in stage.journal.skips]
    assert counted == [*((f"process {100 + n} uses io_uring", n + 1) for n in range(3)), None, (told[1][20:], 1)]


def test_the_end_of_the_tasks_is_nothing_to_tell(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(checkpoints, "_RETRY_SECONDS", (0.001, 0.002))
    stage.capture_error = Ended("no task of this job runs in a pod")
    with pytest.raises(Skipped, match=r"^no task of this job runs in a pod$"):
        asyncio.run(stage.checkpointer.take())
    assert (stage.journal.events, stage.journal.skips, stage.notices._waiting) == ([], [], [])


def test_one_at_a_time(stage: Stage) -> None:
    async def scene() -> list[int]:
        return [manifest.seq for manifest in await asyncio.gather(*(stage.checkpointer.take() for _ in range(3)))]

    assert asyncio.run(scene()) == [1, 2, 3]


def test_a_checkpoint_under_way_is_given_up_when_the_lease_is_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch has noticed; the commit may be copying for minutes."""

    async def scene() -> None:
        publishing, ended = asyncio.Event(), asyncio.Event()

        async def publish(*_: Any) -> None:
            publishing.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        monkeypatch.setattr(transfer, "publish", publish)
        taking = asyncio.create_task(stage.checkpointer.take())
        await publishing.wait()
        stage.checkpointer._incarnation.superseded = "newer"
        stage.checkpointer.abandon()
        with pytest.raises(LeaseLost, match=r"^newer$"):
            await asyncio.wait_for(taking, 60)
        assert ended.is_set()

    asyncio.run(scene())
    assert (stage.journal.committed, stage.journal.events, stage.left()) == ([], [], [])


def test_numbers_that_an_earlier_incarnation_may_still_write_are_not_used(stage: Stage) -> None:
    stage.checkpointer._incarnation.disowned = 7
    assert asyncio.run(stage.checkpointer.take()).seq == 8


def test_a_directory_that_was_removed_is_made_anew(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """And numbers that the job has had are not used again."""
    renewed: list[tuple[str, int]] = []

    async def renew(store: Any, files: Any, node: str, epoch: int) -> None:
        renewed.append((node, epoch))
        stage.lease_error = None

    monkeypatch.setattr(lease, "renew", renew)
    for _ in range(3):
        asyncio.run(stage.checkpointer.take())
    stage.lease_error, stage.seq = lease.DirectoryGone("store directory /s was removed"), 0
    assert asyncio.run(stage.checkpointer.take()).seq == 4
    assert renewed == [("n1", 3)]
    assert stage.journal.events == ["store directory /s was removed, with the checkpoints in it, and made anew"]


def test_no_checkpoint_of_a_suspended_job(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "suspended", lambda steps: True)
    with pytest.raises(Skipped, match=r"^the job is suspended$"):
        asyncio.run(stage.checkpointer.take())
    assert (stage.captures, stage.journal.events) == (0, [])


def test_what_is_just_starting_is_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs the lock to start, and the next try must see it."""
    incarnation = stage.checkpointer._incarnation
    seen: list[list[str]] = []

    async def scene() -> None:
        async def start() -> None:
            async with incarnation.starting:
                stage.steps["1"] = Step("1", 1, 1)
                stage.capture_error = None

        real = stage._capture
        starting: list[asyncio.Task[None]] = []

        async def capture(steps: Any, *more: Any) -> group.Captured:
            seen.append([step.name for step in steps])
            if not starting:
                stage.capture_error = Unsettled("step 1 is just starting or ending")
                starting.append(asyncio.create_task(start()))
            return await real(steps, *more)

        monkeypatch.setattr(group, "capture", capture)
        assert (await stage.checkpointer.take()).seq == 1
        assert seen == [["0"], ["0", "1"]]
        assert stage.journal.events == []

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_what_does_not_settle_is_a_reason(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_SETTLE_SECONDS", 2.0)
    stage.capture_error = Unsettled("an srun of the script is just starting")
    with pytest.raises(Skipped, match=r"^an srun of the script is just starting$"):
        asyncio.run(stage.checkpointer.take())
    assert stage.captures > 1
    assert stage.journal.events == ["checkpoint skipped: an srun of the script is just starting"]
    assert stage.left() == []


PIPE = "process 101 (sh) holds a pipe that was opened outside"


def test_a_refusal_that_is_not_seen_again_is_none(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "PAUSE_SECONDS", 0.001)
    real, doubtful = stage._capture, [Doubtful(PIPE), Doubtful("process 102 uses io_uring")]

    async def capture(*args: Any) -> group.Captured:
        stage.capture_error = doubtful.pop(0) if doubtful else None
        return await real(*args)

    monkeypatch.setattr(group, "capture", capture)
    assert asyncio.run(stage.checkpointer.take()).seq == 1
    assert (stage.captures, stage.journal.events) == (3, [])


def test_a_refusal_that_is_seen_again_is_told_at_once(stage: Stage) -> None:
    """And only that. No later than well within two seconds, as somebody waits for the answer."""
    reasons = [[PIPE, "process 102 uses io_uring"], ["process 102 uses io_uring"]]

    async def capture(*_: Any) -> group.Captured:
        stage.captures += 1
        raise Doubtful(*reasons.pop(0))

    async def scene() -> float:
        began = asyncio.get_running_loop().time()
        with pytest.raises(Skipped, match=r"^process 102 uses io_uring$"):
            await stage.checkpointer.take()
        return asyncio.get_running_loop().time() - began

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "capture", capture)
        # One pause, and what a busy machine makes of it.
        assert doubts.PAUSE_SECONDS < 1 and asyncio.run(scene()) < 60
    assert (stage.captures, stage.journal.events) == (2, ["checkpoint skipped: process 102 uses io_uring"])


@pytest.mark.parametrize("kind", [Doubtful, Unsettled])
def test_no_checkpoint_waits_for_a_better_moment_when_the_ranks_are_wanted(stage: Stage, kind: type[Skipped]) -> None:
    """One of them has died, and its end cannot be held for long."""
    stage.capture_error = kind("task 1 of step 0 has just ended")
    with stage.checkpointer.called_off(), pytest.raises(Skipped, match=r"^task 1 of step 0 has just ended$"):
        asyncio.run(stage.checkpointer.take())
    assert stage.captures == 1


def test_a_script_that_ended_during_the_capture_is_in_the_manifest(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    surroundings = SimpleNamespace(program=Path("/s"))
    script = SimpleNamespace(stand_in=Path("/libexec/srun"), surroundings=surroundings)
    mounted: list[Any] = []

    def fingerprint(*given: Any) -> dict[str, str]:
        mounted.append(given[-1])
        return {}

    monkeypatch.setattr(node, "job_fingerprint", fingerprint)
    real = stage._capture

    async def capture(*args: Any) -> group.Captured:
        captured = await real(*args)
        captured.script, captured.launches_started = cast(Any, script), 5
        # A step that comes when the ranks run again is none of this cut's.
        stage.checkpointer._numbers.started += 1
        return captured

    monkeypatch.setattr(group, "capture", capture)
    stage.checkpointer._numbers.started = 3
    manifest = asyncio.run(stage.checkpointer.take())
    assert (manifest.launches_started, manifest.steps_started) == (5, 3)
    assert mounted == [{Path("/s"): Path("/libexec/srun")}]


def test_a_script_that_is_not_captured_says_so_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    real = stage._capture

    async def capture(*args: Any) -> group.Captured:
        captured = await real(*args)
        captured.without_script = "process 101 uses io_uring"
        return captured

    monkeypatch.setattr(group, "capture", capture)
    for seq in (1, 2):
        assert asyncio.run(stage.checkpointer.take()).seq == seq
    assert stage.notices._waiting == [
        "the batch script is not captured and will run again from its top: process 101 uses io_uring"
    ]


def test_what_another_node_will_miss_is_told_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is something else each time."""
    real, left = stage._capture, iter(["", "a restore will need a", "a restore will need b"])

    async def capture(*args: Any) -> group.Captured:
        captured = await real(*args)
        captured.left = next(left)
        return captured

    monkeypatch.setattr(group, "capture", capture)
    for seq in (1, 2, 3):
        assert asyncio.run(stage.checkpointer.take()).seq == seq
    assert stage.notices._waiting == ["a restore will need a"] == stage.journal.events


def test_a_controller_that_does_not_answer_costs_no_time(stage: Stage) -> None:
    """It is told the node feature beside the work that follows."""

    class Silent:
        async def job(self, job_id: int) -> Any:
            await asyncio.Event().wait()

    stage.checkpointer.feature = FeatureNote(cast(SlurmPort, Silent()), 7, "slurmckpt-0123456789ab")

    async def two() -> list[int]:
        return [(await asyncio.wait_for(stage.checkpointer.take(), 2)).seq for _ in range(2)]

    assert asyncio.run(two()) == [1, 2]
