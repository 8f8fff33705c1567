"""The watch of the lease: what it ends a job for, and what it does not."""

from __future__ import annotations

import asyncio
import os
import pwd
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.coordinator import fence
from slurmckpt.coordinator.pod_init import PodError
from slurmckpt.errors import StoreError
from slurmckpt.identity import JobIdentity
from slurmckpt.store import lease
from slurmckpt.store.layout import JobStore

PERIOD = 0.01


class Watched:
    """A watch whose looks have the outcomes that a test gives; the last one for ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *outcomes: Callable[[], object]) -> None:
        self.lost: list[str] = []
        self.looks = 0
        self._outcomes = outcomes
        monkeypatch.setattr(lease, "_has_claim", self._look)

    def _look(self, *_: object) -> bool:
        outcome = self._outcomes[min(self.looks, len(self._outcomes) - 1)]
        self.looks += 1
        outcome()
        return True

    async def until(self, done: Callable[[], bool]) -> None:
        """Watch until `done`, or the watch ends by itself."""
        store = JobStore(Path("/store"), JobIdentity("c", user(), os.geteuid(), os.getegid(), 7))

        async def lost(reason: str) -> None:
            self.lost.append(reason)

        watching = asyncio.create_task(fence.watch(store, 1, PERIOD, lost))
        for _ in range(10_000):
            if done() or watching.done():
                break
            await asyncio.sleep(PERIOD)
        else:
            raise AssertionError("it did not come to it")
        if not watching.done():
            watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def fine() -> None:
    pass


def newer() -> None:
    raise lease.LeaseLost("job 7 has a newer incarnation (epoch 2)")


def unknown() -> None:
    raise StoreError("lease cannot be read: Input/output error")


@pytest.fixture
def stalled() -> Iterator[threading.Event]:
    """A store that does not answer until it is set."""
    event = threading.Event()
    yield event
    event.set()


def test_a_lost_lease_ends_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, fine, fine, newer)
    asyncio.run(watched.until(lambda: False))
    assert watched.lost == ["job 7 has a newer incarnation (epoch 2)"]
    assert watched.looks == 3


def test_a_store_that_answers_with_errors_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once; and when it answers again, what it says counts."""
    watched = Watched(monkeypatch, unknown, unknown, unknown, newer)
    asyncio.run(watched.until(lambda: False))
    assert watched.lost == ["job 7 has a newer incarnation (epoch 2)"]
    # Of a look that takes longer than the time to the next one, as on a busy machine, it is the silence that is said.
    assert caplog.text.count("whether the lease stands is not known") == 1


def test_a_store_that_does_not_answer_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, stalled: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """The first answer after the silence is that of the look that hung."""

    def hang() -> None:
        assert stalled.wait(60)
        newer()

    async def scene() -> None:
        watched = Watched(monkeypatch, hang)
        watching = asyncio.create_task(watched.until(lambda: False))
        while "does not answer" not in caplog.text:
            await asyncio.sleep(PERIOD)
        assert watched.lost == []
        stalled.set()
        await asyncio.wait_for(watching, 60)
        assert (watched.lost, watched.looks) == (["job 7 has a newer incarnation (epoch 2)"], 1)

    asyncio.run(scene())


def test_the_end_of_the_job_does_not_wait_for_a_store_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, stalled: threading.Event
) -> None:
    async def scene() -> None:
        watched = Watched(monkeypatch, lambda: cast(Any, stalled).wait(30))
        await asyncio.wait_for(watched.until(lambda: watched.looks == 1), 60)

    asyncio.run(scene())
    assert not stalled.is_set()


def test_the_new_incarnation_waits_for_the_other_to_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    job = JobIdentity("c", "jane", 1, 1, 7)
    now = time.monotonic()
    asyncio.run(fence.wait_for_the_other(job, 10.0, now - 5.0))
    late = time.monotonic() - now
    # 10 s until it looks, 2 s until its last rank is dead; 5 s have passed since, and what this has taken.
    (seconds,) = slept
    assert 7.0 - late <= seconds <= 7.0
    asyncio.run(fence.wait_for_the_other(job, 10.0, now - 13.0))
    assert len(slept) == 1


class FakePod:
    """A pod whose ranks are killed at once, too late or not at all, as `kill` says; when it runs."""

    def __init__(self, kill: str, running: bool = True) -> None:
        self.step, self.running = "0", running
        self.events: list[str] = []
        self._kill = kill

    async def kill_tasks(self) -> None:
        if self._kill == "late":
            await asyncio.sleep(60)
        if self._kill == "fails":
            raise PodError("pod init of step 0 does not answer KILL")
        self.events.append("killed")

    def destroy(self) -> None:
        self.events.append("destroyed")

    async def gone(self) -> None:
        self.events.append("gone")


@pytest.mark.parametrize(
    ("pod", "events"),
    [
        (FakePod("at once"), ["killed"]),
        (FakePod("late"), ["destroyed", "gone"]),
        (FakePod("fails"), ["destroyed", "gone"]),
        (FakePod("at once", running=False), ["destroyed", "gone"]),
    ],
    ids=["at-once", "late", "fails", "not-running"],
)
def test_ranks_are_killed_and_shims_stay_where_they_can(
    monkeypatch: pytest.MonkeyPatch, pod: FakePod, events: list[str]
) -> None:
    monkeypatch.setattr(fence, "_KILL_SECONDS", 0.05)
    asyncio.run(fence.kill(cast(Any, pod)))
    assert pod.events == events


def test_slurm_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "_SLURM_SECONDS", 0.05)

    async def scene() -> None:
        pod = SimpleNamespace(gone=asyncio.Event().wait)
        await asyncio.wait_for(fence.until_slurm_knows([cast(Any, pod)]), 60)

    asyncio.run(scene())
