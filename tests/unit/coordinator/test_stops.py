"""A task stands still when its shim was stopped, and goes on with it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.coordinator import stops
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.stops import Stops
from slurmckpt.coordinator.suspension import is_stopped
from tests.unit.awaiting import wait_until

Sleeper = Callable[..., int]


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    """Starts processes that do nothing, each in the given group or one of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(group: int = 0) -> int:
        started.append(subprocess.Popen(["sleep", "100"], preexec_fn=lambda: os.setpgid(0, group)))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def stops_of(shim: int, task: int, monkeypatch: pytest.MonkeyPatch, anchor: int = 0) -> Stops:
    pod = SimpleNamespace(init_pid=1, running=True, tasks={0: SimpleNamespace(pid=101)})
    step = Step("batch", 1, 1, pod=cast(Any, pod))
    step.tasks = {0: cast(Any, SimpleNamespace(shim_pid=shim))}
    monkeypatch.setattr(stops, "pid_on_node", lambda init_pid, pid: task if (init_pid, pid) == (1, 101) else None)
    monkeypatch.setattr(stops, "parent_of", lambda pid: anchor)
    return Stops({"batch": step})


def stands(pid: int) -> bool:
    return is_stopped(Path(f"/proc/{pid}"))


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: stands(pid), "it stands still")


def test_a_task_stops_with_its_shim(sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch) -> None:
    shim, task = sleeper(), sleeper()
    looking = stops_of(shim, task, monkeypatch)
    looking.look()
    assert not stands(task)
    for _ in range(2):
        stop(shim)
        looking.look()
        wait_until(lambda: stands(task), "it stands still")
        # Once: whoever lets it go on although its shim stands has his reasons.
        os.kill(task, signal.SIGCONT)
        wait_until(lambda: not stands(task), "it goes on")
        looking.look()
        assert not stands(task)
        os.kill(shim, signal.SIGCONT)
        wait_until(lambda: not stands(shim), "it goes on")
        looking.look()


def test_the_group_stops_with_the_anchor(sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch) -> None:
    shim, task, anchor = sleeper(), sleeper(), sleeper()
    child = sleeper(task)
    stop(shim)
    stops_of(shim, task, monkeypatch, anchor).look()
    wait_until(lambda: stands(task), "it stands still")
    assert not stands(child)
    stop(anchor)
    stops_of(shim, task, monkeypatch, anchor).look()
    wait_until(lambda: stands(child), "it stands still")


def test_a_shim_that_goes_on_at_that_very_moment(sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its SIGCONT has been passed on by then, and nobody else would wake the task."""
    shim, task = sleeper(), sleeper()
    stop(shim)
    looking = stops_of(shim, task, monkeypatch)
    send = signal.pidfd_send_signal

    def late(pidfd: int, number: int) -> None:
        os.kill(shim, signal.SIGCONT)
        wait_until(lambda: not stands(shim), "it goes on")
        send(pidfd, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", late)
    looking.look()
    wait_until(lambda: not stands(task), "it goes on")


def test_a_task_that_has_ended(sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = sleeper()
    stop(shim)
    stops_of(shim, 0x7FFFFFFF, monkeypatch).look()
