"""Taking checkpoints: one at a time, tried again, and never the end of those to come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.capture import criu
from slurmckpt.config import Hooks, Settings, Store
from slurmckpt.coordinator import checkpoints, group, node, schedule
from slurmckpt.coordinator.checkpoints import Checkpointer
from slurmckpt.coordinator.choice import Ended, Skipped, Unsettled
from slurmckpt.coordinator.commands import Commands
from slurmckpt.coordinator.featurenote import FeatureNote
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.coordinator.journal import Journal
from slurmckpt.coordinator.notices import Notices
from slurmckpt.coordinator.spec import JobSpec, Options
from slurmckpt.coordinator.step import Step, StepNumbers
from slurmckpt.errors import StoreError
from slurmckpt.identity import JobIdentity
from slurmckpt.slurm.port import SlurmPort
from slurmckpt.store import lease, retention, transfer
from slurmckpt.store.lease import LeaseLost
from slurmckpt.store.record import SkippedNote
from slurmckpt.units import Interval
from tests.unit.coordinator.parts import GID, UID, image


class FakeJournal:
    began = 1

    def __init__(self) -> None:
        self.events: list[str] = []
        self.committed: list[int] = []
        self.skips: list[SkippedNote | None] = []

    async def event(self, text: str) -> None:
        self.events.append(text)

    async def skipped(self, note: SkippedNote | None) -> None:
        self.skips.append(note)

    async def checkpoint(self, manifest: Any, capture_seconds: float, commit_seconds: float) -> None:
        self.committed.append(manifest.seq)


class Files:
    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


class Stage:
    """An incarnation whose captures and commits do what a test says."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings | None = None) -> None:
        self.staging = top
        self.publish_errors: list[Exception] = []
        self.prune_error: Exception | None = None
        self.capture_error: Exception | None = None
        self.lease_error: Exception | None = None
        self.published = 0
        self.captures = 0
        self.lost: list[str] = []
        self.journal = FakeJournal()
        self.seq = 0
        self.steps = {"0": Step("0", 1, 1)}
        job = JobIdentity("c", "jane", UID, GID, 7)
        options = Options(interval=Interval("fixed", 1.0), keep=5)
        incarnation = SimpleNamespace(
            spec=JobSpec(job, "n1", 1, 2, options),
            settings=settings or Settings(),
            gpus=None,
            node=SimpleNamespace(
                installation=criu.Installation("/criu", "4.2.1", False), key=b"k" * 16, fingerprint={}, feature="f"
            ),
            files=Files(),
            store=SimpleNamespace(next_seq=self._next, dir=top),
            epoch=3,
            journal=self.journal,
            staging=top,
            shm=top,
            enter=Path("/enter"),
            script=None,
            starting=asyncio.Lock(),
            plan=None,
            disowned=0,
            superseded="",
            commands=Commands(Path("/enter"), Hooks(), options, cast(Journal, self.journal)),
        )
        monkeypatch.setattr(lease, "check", self._check)
        monkeypatch.setattr(group, "capture", self._capture)
        monkeypatch.setattr(transfer, "publish", self._publish)
        monkeypatch.setattr(retention, "prune", self._prune)
        self.notices = Notices()
        self.checkpointer = Checkpointer(
            cast(Incarnation, incarnation), self.steps, self.notices, cast(SlurmPort, None), self._lose, StepNumbers()
        )

    def _next(self) -> int:
        self.seq += 1
        return self.seq

    async def _lose(self, reason: str) -> None:
        self.lost.append(reason)

    async def _check(self, *_: Any) -> None:
        if self.lease_error is not None:
            raise self.lease_error

    async def _capture(self, steps: Any, script: Any, seq: int, *_: Any) -> group.Captured:
        self.captures += 1
        directory = self.staging / str(seq)
        directory.mkdir()
        await asyncio.sleep(0.01)
        if self.capture_error is not None:
            directory.rmdir()
            raise self.capture_error
        return group.Captured(directory, steps=[image()], taken=1000.0, freeze_seconds=0.5, capture_seconds=1.0)

    async def _publish(self, directory: Path, store: Any, files: Any, manifest: Any, *_: Any) -> Any:
        self.published += 1
        if self.publish_errors:
            raise self.publish_errors.pop(0)
        return manifest

    async def _prune(self, store: Any, files: Any, keep: int, protect: set[int]) -> None:
        assert keep == 5
        if self.prune_error is not None:
            raise self.prune_error

    def left(self) -> list[Path]:
        return list(self.staging.iterdir())


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
    assert len(stage.checkpointer.seconds) == 5 and all(1.0 <= each < 2 for each in stage.checkpointer.seconds)


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


def test_the_timer_goes_on_after_whatever_went_wrong(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Step, "running", property(lambda step: True))
    monkeypatch.setattr(schedule, "seconds_until_next", lambda *_: 0.001)
    outcomes = iter([Skipped("no"), KeyError("a fault of ours"), StoreError("full"), OSError(5, "io")])

    async def scene() -> None:
        done = asyncio.Event()
        real = stage._capture

        async def capture(*args: Any) -> group.Captured:
            for error in outcomes:
                raise error
            done.set()
            return await real(*args)

        monkeypatch.setattr(group, "capture", capture)
        keeping = asyncio.create_task(stage.checkpointer.keep_time())
        await asyncio.wait_for(done.wait(), 60)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(scene())
    assert "a fault of ours" in caplog.text


def test_the_timer_ends_with_the_lease(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Step, "running", property(lambda step: True))
    monkeypatch.setattr(schedule, "seconds_until_next", lambda *_: 0.001)
    stage.lease_error = LeaseLost("newer")
    asyncio.run(asyncio.wait_for(stage.checkpointer.keep_time(), 60))
    assert stage.lost == ["newer"]


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


class Clock:
    """A loop's time in which sleeping takes none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.real = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await self.real(0)


def timer(stage: Stage, monkeypatch: pytest.MonkeyPatch, at: Callable[[float], bool]) -> list[float]:
    """When checkpoints are taken with an interval of 10 s, in the first 40 s. at: whether the job is suspended then."""
    moments: list[float] = []
    clock = Clock(monkeypatch)
    monkeypatch.setattr(Step, "running", property(lambda step: True))
    monkeypatch.setattr(schedule, "seconds_until_next", lambda *_: 10.0 if clock.now < 40 else None)
    monkeypatch.setattr(checkpoints, "suspended", lambda steps: at(clock.now))

    async def take() -> None:
        moments.append(clock.now)
        stage.checkpointer._taken += 1

    monkeypatch.setattr(stage.checkpointer, "take", take)

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: clock.now)
        await stage.checkpointer.keep_time()

    asyncio.run(scene())
    return moments


def test_the_timer(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert timer(stage, monkeypatch, lambda now: False) == [10, 20, 30, 40]


def test_no_time_passes_for_a_suspended_job(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was left of the interval before is left after."""
    assert timer(stage, monkeypatch, lambda now: 15 < now <= 33) == [10, 38, 48]


def test_a_checkpoint_on_request_puts_off_the_next_one(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def at(now: float) -> bool:
        if now == 17:
            stage.checkpointer._taken += 1
        return False

    assert timer(stage, monkeypatch, at) == [10, 28, 38, 48]


def test_no_timer_where_none_is_wanted(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "seconds_until_next", lambda *_: None)
    asyncio.run(asyncio.wait_for(stage.checkpointer.keep_time(), 60))
    assert stage.captures == 0


def test_nothing_is_taken_while_nothing_runs(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = iter([0.0, 0.0, 0.0, None])
    monkeypatch.setattr(schedule, "seconds_until_next", lambda *_: next(pauses))
    asyncio.run(asyncio.wait_for(stage.checkpointer.keep_time(), 60))
    assert stage.captures == 0


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
