"""One job on one node: whatever fails, its tasks run; and what stays when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.coordinator import incarnation
from slurmckpt.coordinator.choice import Skipped
from slurmckpt.coordinator.job import Job
from slurmckpt.coordinator.script.marks import Marks
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.wire import Channel
from slurmckpt.errors import SlurmckptError
from tests.unit.coordinator.jobs import new_job
from tests.unit.coordinator.parts import channels, hello, no_descriptor_is_lost, task


async def heard(channel: Channel) -> list[str]:
    """All messages until the end of the connection."""
    words = []
    while (message := await asyncio.wait_for(channel.receive(), 60)) is not None:
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
        await asyncio.wait_for(job.stop(), 60)
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
        await asyncio.wait_for(job.stop(), 60)
        assert not pod.running
        return events

    assert asyncio.run(scene())[:2] == ["pod ends", "capture ends"]


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
        await asyncio.wait_for(job.superseded.wait(), 60)
        await job.stop()

    asyncio.run(scene())
    assert "job 7: job 7 has a newer incarnation (epoch 2)" in caplog.text
