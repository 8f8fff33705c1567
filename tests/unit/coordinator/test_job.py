"""One job on one node: whatever fails, its tasks run; and what stays when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.config import Paths, Settings
from slurmckpt.coordinator import incarnation, leftovers
from slurmckpt.coordinator import job as jobs
from slurmckpt.coordinator.choice import Skipped
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.coordinator.job import Job
from slurmckpt.coordinator.script.launch import Launch
from slurmckpt.coordinator.script.marks import Marks
from slurmckpt.coordinator.spec import JobSpec, Options
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.task import Hello
from slurmckpt.coordinator.wire import Channel
from slurmckpt.errors import SlurmckptError, SlurmError
from slurmckpt.identity import JobIdentity
from slurmckpt.slurm.port import SlurmPort
from slurmckpt.store import lease, retention
from slurmckpt.store.lease import LeaseLost
from tests.unit.coordinator.parts import GID, UID, channels, hello, launch, no_descriptor_is_lost, task


def new_job(top: Path, slurm: object = None, declined: str = "") -> Job:
    spec = JobSpec(JobIdentity("c", "jane", UID, GID, 7), "n1", 1, 0, Options(keep=3))
    return Job(spec, Settings(paths=Paths(run=top)), cast(SlurmPort | None, slurm), declined)


async def heard(channel: Channel) -> list[str]:
    """All messages until the end of the connection."""
    words = []
    while (message := await asyncio.wait_for(channel.receive(), 5)) is not None:
        words.append(" ".join([message.verb, *(value for _, value in message.pairs)]))
    return words


def first_task_of(job: Callable[[], Job], open_it: bool = True) -> list[str]:
    """What the first task of a job hears."""

    async def scene() -> list[str]:
        here = job()
        opening = asyncio.create_task(here.open()) if open_it else None
        one, shim = channels()
        step = here.step_of(hello())
        assert step is not None
        step.add(task(one))
        words = await heard(shim)
        if opening is not None:
            await opening
        await here.stop()
        shim.close()
        return words

    with no_descriptor_is_lost():
        return asyncio.run(scene())


def begin_with(monkeypatch: pytest.MonkeyPatch, begin: Callable[..., Awaitable[Any]]) -> None:
    monkeypatch.setattr(incarnation, "begin", begin)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SlurmckptError("CRIU is not installed"), "CRIU is not installed"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (KeyError("a fault of ours"), "'a fault of ours'"),
        (AssertionError(), "AssertionError"),
        (ValueError("two\nlines"), "two\\nlines"),
    ],
)
def test_a_job_that_cannot_be_checkpointed_runs_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    async def begin(*_: object) -> None:
        await asyncio.sleep(0.01)
        raise error

    begin_with(monkeypatch, begin)
    assert first_task_of(lambda: new_job(tmp_path)) == [
        f"SAY slurmckpt: no checkpoints for this job: {reason}",
        "DIRECT",
    ]


def test_a_job_that_was_declined_before_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin(*_: object) -> None:
        raise AssertionError("nothing is to be examined")

    begin_with(monkeypatch, begin)
    assert first_task_of(lambda: new_job(tmp_path, declined="slurmckpt.toml is wrong")) == [
        "SAY slurmckpt: no checkpoints for this job: slurmckpt.toml is wrong",
        "DIRECT",
    ]


def test_a_request_for_a_checkpoint_of_a_declined_job(tmp_path: Path) -> None:
    async def scene() -> None:
        await new_job(tmp_path, declined="slurmckpt.toml is wrong").checkpoint()

    with pytest.raises(Skipped, match=r"^no checkpoints for this job: slurmckpt\.toml is wrong$"):
        asyncio.run(scene())


def test_a_job_that_ends_while_it_is_still_being_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        begun, cancelled = asyncio.Event(), asyncio.Event()

        async def begin(*_: object) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        begin_with(monkeypatch, begin)
        job = new_job(tmp_path)
        opening = asyncio.create_task(job.open())
        await begun.wait()
        await asyncio.wait_for(job.stop(), 5)
        assert cancelled.is_set() and opening.done()
        await job.settle()
        # And one that starts only now starts nothing.
        await job.open()

    asyncio.run(scene())


def test_a_task_that_comes_while_the_job_ends_is_not_wrapped(tmp_path: Path) -> None:
    async def scene() -> None:
        job = new_job(tmp_path)
        await job.stop()
        assert job.step_of(hello()) is None
        assert job.steps == {}

    asyncio.run(scene())


def test_a_step_that_is_closed_takes_no_more_tasks(tmp_path: Path) -> None:
    async def scene() -> None:
        job = new_job(tmp_path, declined="why")
        step = job.step_of(hello(ntasks=2))
        assert step is not None and job.step_of(hello(task=1, ntasks=2)) is step
        step.closed = True
        assert job.step_of(hello(task=1, ntasks=2)) is None
        await job.stop()

    asyncio.run(scene())


def with_terminal(job: Callable[[], Job]) -> list[list[str]]:
    """What two tasks hear that have a terminal, and another of the same step."""

    async def scene() -> list[list[str]]:
        here = job()
        here._ready.set()
        step = here.step_of(hello(ntasks=2))
        answers = []
        for _ in range(2):
            one, shim = channels()
            await here.leave_alone(step, one)
            one.close()
            answers.append(await heard(shim))
            shim.close()
        assert step is not None
        one, shim = channels()
        step.lose(0)
        step.add(task(one, index=1, ntasks=2))
        answers.append(await heard(shim))
        shim.close()
        await here.stop()
        return answers

    with no_descriptor_is_lost():
        return asyncio.run(scene())


def test_a_terminal_is_left_alone_and_the_first_one_says_so(tmp_path: Path) -> None:
    said = "SAY slurmckpt: no checkpoints for steps with a terminal (srun --pty)"
    assert with_terminal(lambda: new_job(tmp_path)) == [[said, "DIRECT"], ["DIRECT"], ["DIRECT"]]


def test_a_terminal_of_a_job_without_checkpoints(tmp_path: Path) -> None:
    def job() -> Job:
        declined = new_job(tmp_path)
        declined.decline("why", quiet=True)
        return declined

    assert with_terminal(job) == [["DIRECT"]] * 3


class StoppablePod:
    """A pod that is gone only some time after it was told to end."""

    def __init__(self, ends: Callable[[], None] = lambda: None) -> None:
        self.running = True
        self.ends = ends

    def destroy(self) -> None:
        self.ends()

    async def gone(self) -> None:
        await asyncio.sleep(0.01)
        self.running = False


class FencedPod(StoppablePod):
    """A pod whose ranks can be killed, and which Slurm ends."""

    def __init__(self) -> None:
        super().__init__()
        self.killed = False
        self.over = asyncio.Event()

    async def kill_tasks(self) -> None:
        self.killed = True

    async def gone(self) -> None:
        await self.over.wait()


def test_stop_ends_the_pods_before_it_waits_for_what_works_in_them(tmp_path: Path) -> None:
    """A CRIU that dumps for minutes ends with its pod; nothing else makes it end."""

    async def scene() -> list[str]:
        events: list[str] = []
        pod_ended = asyncio.Event()

        async def capture() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await pod_ended.wait()
                events.append("capture ends")

        def ends() -> None:
            events.append("pod ends")
            pod_ended.set()

        job = new_job(tmp_path, declined="why")
        pod = StoppablePod(ends)
        job.steps["0"] = Step("0", 1, 1, pod=cast(Any, pod))
        job._work(capture())
        await asyncio.sleep(0)
        await asyncio.wait_for(job.stop(), 5)
        assert not pod.running
        return events

    assert asyncio.run(scene())[:2] == ["pod ends", "capture ends"]


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

    monkeypatch.setattr(jobs, "_DECISION_SECONDS", 0.05)
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


def test_status(tmp_path: Path) -> None:
    async def scene() -> dict[str, Any]:
        job = new_job(tmp_path, declined="why")
        job.steps["0"] = Step("0", 2, 1, restored_from=4)
        return job.status()

    found = asyncio.run(scene())
    assert found.pop("time") > 1_700_000_000
    assert found == {
        "job_id": 7,
        "node": "n1",
        "interval": "600s",
        "epoch": None,
        "declined": "why",
        "ranks": [],
        "waits_for": [],
        "steps": [{"step": "0", "ntasks": 2, "running": False, "restored_from": 4}],
    }


def test_a_newer_incarnation_ends_the_pods_of_this_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        job = new_job(tmp_path)
        pod = FencedPod()
        job.steps["9"] = Step("9", 1, 1, pod=cast(Any, pod))
        abandoned: list[bool] = []
        job._checkpointer = cast(Any, SimpleNamespace(abandon=lambda: abandoned.append(pod.killed)))
        recovery = job._work(asyncio.Event().wait())
        job._beside = [recovery]
        job._incarnation = cast(
            Any, SimpleNamespace(superseded="", epoch=1, marks=Marks(), staging=tmp_path / "staging")
        )
        job._runner = cast(Any, None)
        job._ready.set()
        await job._superseded("job 7 has a newer incarnation (epoch 2)")
        assert pod.killed
        assert abandoned == [False]
        # Nothing brings its ranks back, or requeues the job of the other.
        await asyncio.sleep(0)
        assert recovery.cancelled()
        assert job._declined == "job 7 has a newer incarnation (epoch 2)"
        # A step that comes now would run beside that of the newer incarnation.
        one, shim = channels()
        step = job.step_of(hello())
        assert step is not None
        step.add(task(one))
        assert await heard(shim) == ["EXIT 9"]
        shim.close()
        # Its shims are Slurm's to end: only then is there nothing more to do here.
        await job._superseded("job 7 has a newer incarnation (epoch 2)")
        assert not job.superseded.is_set()
        pod.over.set()
        await asyncio.wait_for(job.superseded.wait(), 5)
        await job.stop()

    asyncio.run(scene())
    assert "job 7: job 7 has a newer incarnation (epoch 2)" in caplog.text


def script_of(job: Job, *launches: Launch) -> None:
    """Give the job a batch script that runs with these sruns, whose marks are their numbers."""
    marks = Marks()
    for number in range(max((one.number for one in launches), default=-1) + 1):
        marks.issue(next((one for one in launches if one.number == number), launch(number)))
    job._incarnation = cast(Incarnation, SimpleNamespace(marks=marks))


def steps_of(top: Path, launches: Sequence[Launch], hellos: Sequence[Hello], marks: Sequence[Hello] = ()) -> list[Step]:
    """The steps that tasks belong to. marks: tasks that run outside, before."""

    async def scene() -> list[Step]:
        job = new_job(top)
        script_of(job, *launches)
        for each in marks:
            job.runs_outside(each)
        found = [job.step_of(each) for each in hellos]
        for work in job._working:
            work.cancel()
        await asyncio.gather(*job._working, return_exceptions=True)
        assert all(step is not None for step in found)
        return cast(list[Step], found)

    return asyncio.run(scene())


def test_a_step_belongs_to_the_srun_that_brought_it(tmp_path: Path) -> None:
    one, two = launch(1), launch(2)
    hellos = [
        hello(step=0xFFFFFFFB),
        replace(hello(step=4), launch=2),
        replace(hello(step=3, ntasks=2), launch=1),
        replace(hello(step=3, task=1, ntasks=2), launch=1),
        hello(step=5),
    ]
    batch, first, second, other, stranger = steps_of(tmp_path, [one, two], hellos)
    assert (batch.name, batch.launch) == ("batch", None)
    assert (first.name, first.launch) == ("0", two)
    assert (second.name, second.launch) == ("1", one)
    assert other is second
    assert (stranger.name, stranger.launch) == ("2", None)
    assert (one.step, two.step) == ("1", "0")


def test_a_restored_step_has_its_name_from_the_checkpoint(tmp_path: Path) -> None:
    one = launch(1)
    one.step = "17"
    back, new = steps_of(tmp_path, [one], [replace(hello(step=0), launch=1), hello(step=1)])
    assert (back.name, back.launch, new.name) == ("17", one, "0")


def test_a_step_that_a_step_has_started_is_not_the_scripts(tmp_path: Path) -> None:
    """It may show the mark of the srun that brought the step it runs in: that one has its step already."""
    one = launch(1)
    outer, inner = steps_of(tmp_path, [one], [replace(hello(step=0), launch=1), replace(hello(step=1), launch=1)])
    assert (outer.launch, inner.launch) == (one, None)
    assert (one.step, one.slurm_step, inner.name) == ("0", "0", "1")


def test_a_mark_that_nobody_gave(tmp_path: Path) -> None:
    over = launch(1)
    over.ended.set()
    for number in (1, 7):
        (found,) = steps_of(tmp_path, [over], [replace(hello(), launch=number)])
        assert (found.launch, found.name) == (None, "0")


def test_a_step_that_is_off_keeps_its_script_out(tmp_path: Path) -> None:
    one, two = launch(1), launch(2)
    off = replace(hello(step=3), launch=1, off=True)
    (other,) = steps_of(tmp_path, [one, two], [replace(hello(step=4), launch=2)], [off, replace(off, task=0)])
    assert one.outside == "a step of it runs with --checkpoint-interval=off"
    assert (two.outside, other.launch) == ("", two)
    # Without a script, or without a mark, there is nothing to keep out.
    job = new_job(tmp_path)
    job.runs_outside(off)
    script_of(job)
    job.runs_outside(off)
    job.runs_outside(replace(off, launch=None))


def test_old_steps_of_very_many_are_forgotten(tmp_path: Path) -> None:
    async def scene() -> None:
        job = new_job(tmp_path, declined="why")
        job._incarnation = cast(Incarnation, SimpleNamespace(marks=Marks(), superseded=""))
        kept = launch(0)
        marked = replace(hello(step=0), launch=job._incarnation.marks.issue(kept))
        for number in range(150):
            step = job.step_of(marked if number == 0 else hello(step=number))
            assert step is not None
            step.lose(0)
            await asyncio.gather(*job._working)
        assert list(job.steps) == ["0", *map(str, range(51, 150))]
        # One of its tasks that comes late is not the first of a new step.
        assert job.step_of(hello(step=7)) is None
        kept.ended.set()
        for number in (150, 151):
            step = job.step_of(hello(step=number))
            assert step is not None
            step.lose(0)
            await asyncio.gather(*job._working)
        assert len(job.steps) == 100

    asyncio.run(scene())
