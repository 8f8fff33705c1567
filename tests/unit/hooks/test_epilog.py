"""The epilog with real processes and sockets: nothing stays, and nobody else's process is harmed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurmckpt.config import Log, Paths, Settings, Staging
from slurmckpt.coordinator.proc import start_time
from slurmckpt.errors import ConfigError
from slurmckpt.hooks import epilog


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "run").mkdir()
    (tmp_path / "staging" / "7").mkdir(parents=True)
    return Settings(
        paths=Paths(run=tmp_path / "run"), staging=Staging(path=tmp_path / "staging"), log=Log(path=tmp_path / "log")
    )


@pytest.fixture
def job(settings: Settings) -> Path:
    """The run directory of job 7."""
    directory = settings.paths.run / "7"
    (directory / "pods").mkdir(parents=True)
    (directory / "spec.json").write_text("{}")
    return directory


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    children: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait()


def note(path: Path, pid: int, started: int | None = None) -> None:
    path.write_text(f"{pid} {start_time(pid) if started is None else started}\n")


def serve(job: Path, answer: bytes | None) -> threading.Thread:
    """A coordinator that answers one request, or none at all."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(job / "control.sock"))
    listener.listen()

    def run() -> None:
        with listener:
            connection, _ = listener.accept()
            with connection:
                assert json.loads(connection.makefile().readline()) == {"verb": "stop"}
                if answer is not None:
                    connection.sendall(answer)
                else:
                    connection.recv(1)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_coordinator_that_ends_by_itself(settings: Settings, job: Path, sleeper: Callable[[], object]) -> None:
    child = sleeper()
    assert isinstance(child, subprocess.Popen)
    note(job / "coordinator.pid", child.pid)
    thread = serve(job, b'{"stopped": true}\n')
    epilog.clean(settings, 7)
    thread.join()
    assert not job.exists()
    assert not (settings.staging.path / "7").exists()
    # It said that it had ended everything: nothing is to be killed.
    assert child.poll() is None


@pytest.mark.parametrize("answer", [None, b"", b"[]\n", b'{"error": "no"}\n', b'{"stopped": 1}\n', b"nonsense\n"])
def test_a_coordinator_that_does_not_end_is_killed_with_its_pods(
    settings: Settings,
    job: Path,
    sleeper: Callable[[], subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    answer: bytes | None,
) -> None:
    monkeypatch.setattr(epilog, "_STOP_SECONDS", 0.2)
    coordinator, first, second = sleeper(), sleeper(), sleeper()
    note(job / "coordinator.pid", coordinator.pid)
    note(job / "pods" / "0.pid", first.pid)
    note(job / "pods" / "batch.pid", second.pid)
    thread = serve(job, answer)
    epilog.clean(settings, 7)
    thread.join()
    assert [child.wait(5) for child in (coordinator, first, second)] == [-signal.SIGKILL] * 3
    assert not job.exists()


def test_a_coordinator_that_is_gone(
    settings: Settings, job: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    pod = sleeper()
    note(job / "coordinator.pid", 2**22 - 1, 1)
    note(job / "pods" / "0.pid", pod.pid)
    epilog.clean(settings, 7)
    assert pod.wait(5) == -signal.SIGKILL
    assert not job.exists()


def test_another_process_with_the_same_pid_lives(
    settings: Settings, job: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    other = sleeper()
    note(job / "pods" / "0.pid", other.pid, start_time(other.pid) - 1)
    before = time.monotonic()
    epilog.clean(settings, 7)
    assert time.monotonic() - before < 0.5
    assert other.poll() is None


def test_a_pid_that_changes_hands_between_two_looks(
    job: Path, sleeper: Callable[[], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither killed nor waited for."""
    other = sleeper()
    note(job / "pods" / "0.pid", other.pid, 5)
    answers = iter([5, 6])
    monkeypatch.setattr(epilog, "start_time", lambda pid: next(answers))
    before, descriptors = time.monotonic(), os.listdir("/proc/self/fd")
    epilog._kill_noted([job / "pods" / "0.pid"])
    assert time.monotonic() - before < 0.5
    assert other.poll() is None
    assert os.listdir("/proc/self/fd") == descriptors


@pytest.mark.parametrize("content", ["", "x y", "1", "1 2 3", "-1 5", "4194303 5", "99999999999999999999 5", "\xff"])
def test_notes_that_make_no_sense(settings: Settings, job: Path, content: str) -> None:
    (job / "pods" / "0.pid").write_text(content, encoding="latin-1")
    (job / "coordinator.pid").mkdir()
    epilog.clean(settings, 7)
    assert not job.exists()


def test_all_are_killed_before_any_is_waited_for(
    job: Path, sleeper: Callable[[], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not end must not cost the others their end: the epilog has seconds."""
    monkeypatch.setattr(epilog, "_KILL_SECONDS", 0.2)
    stuck, others = sleeper(), [sleeper() for _ in range(3)]
    note(job / "coordinator.pid", stuck.pid)
    for index, child in enumerate(others):
        note(job / "pods" / f"{index}.pid", child.pid)
    real = signal.pidfd_send_signal
    signals: list[int] = []

    def send(pidfd: int, number: int) -> None:
        signals.append(number)
        if len(signals) > 1:
            real(pidfd, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", send)
    before = time.monotonic()
    epilog._kill_noted([job / "coordinator.pid", *sorted((job / "pods").iterdir())])
    assert time.monotonic() - before < 2
    assert [child.wait(5) for child in others] == [-signal.SIGKILL] * 3
    assert stuck.poll() is None


def test_a_job_without_coordinator(settings: Settings) -> None:
    epilog.clean(settings, 7)
    # What a coordinator of another job staged is not this one's.
    assert (settings.staging.path / "7").exists()


def test_it_may_run_again(settings: Settings, job: Path) -> None:
    epilog.clean(settings, 7)
    epilog.clean(settings, 7)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """main() without a log file of its own; gives who started logging."""
    started: list[str] = []
    monkeypatch.setattr("slurmckpt.logs.start", lambda path, level, who: started.append(who))
    return started


@pytest.mark.parametrize("environment", [{}, {"SLURM_JOB_ID": ""}, {"SLURM_JOB_ID": "../7"}])
def test_main_is_always_successful(
    monkeypatch: pytest.MonkeyPatch, quiet: list[str], environment: dict[str, str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert epilog.main() == 0
    assert quiet == ["epilog"]


def test_main_with_a_broken_configuration(
    monkeypatch: pytest.MonkeyPatch, quiet: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def load() -> Settings:
        raise ConfigError("slurmckpt.toml: is not valid TOML")

    cleaned: list[tuple[Settings, int]] = []
    monkeypatch.setattr("slurmckpt.config.load", load)
    monkeypatch.setattr(epilog, "clean", lambda settings, job_id: cleaned.append((settings, job_id)))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert epilog.main() == 0
    assert cleaned == [(Settings(), 7)]


def test_main_cleans_the_job_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, quiet: list[str], settings: Settings, job: Path
) -> None:
    monkeypatch.setattr("slurmckpt.config.load", lambda: settings)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert epilog.main() == 0
    assert not job.exists()
