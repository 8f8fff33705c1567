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
from collections.abc import Callable
from pathlib import Path

import pytest

import slurmckpt
from slurmckpt.config import Log, Paths, Settings, Staging
from slurmckpt.coordinator.proc import start_time
from slurmckpt.coordinator.remains import Incarnation
from slurmckpt.errors import ConfigError
from slurmckpt.hooks import epilog
from tests.unit.coordinator.parts import note


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "run").mkdir()
    (tmp_path / "staging" / "7").mkdir(parents=True)
    return Settings(
        paths=Paths(run=tmp_path / "run"), staging=Staging(path=tmp_path / "staging"), log=Log(path=tmp_path / "log")
    )


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody stands by: it would wait for the end of the tests. See the tests of coordinator/remains."""
    monkeypatch.setattr(Incarnation, "stand_by", lambda self: None)


@pytest.fixture
def job(settings: Settings) -> Path:
    """The run directory of job 7."""
    directory = settings.paths.run / "7"
    (directory / "pods").mkdir(parents=True)
    (directory / "spec.json").write_text("{}")
    return directory


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
    assert [child.wait(60) for child in (coordinator, first, second)] == [-signal.SIGKILL] * 3
    assert not job.exists()


def test_a_coordinator_that_is_gone(
    settings: Settings, job: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    pod = sleeper()
    note(job / "coordinator.pid", 2**22 - 1, 1)
    note(job / "pods" / "0.pid", pod.pid)
    epilog.clean(settings, 7)
    assert pod.wait(60) == -signal.SIGKILL
    assert not job.exists()


def test_another_process_with_the_same_pid_lives(
    settings: Settings, job: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    other = sleeper()
    note(job / "pods" / "0.pid", other.pid, start_time(other.pid) - 1)
    epilog.clean(settings, 7)
    assert other.poll() is None


@pytest.mark.parametrize("content", ["", "x y", "1", "1 2 3", "-1 5", "4194303 5", "99999999999999999999 5", "\xff"])
def test_notes_that_make_no_sense(settings: Settings, job: Path, content: str) -> None:
    (job / "pods" / "0.pid").write_text(content, encoding="latin-1")
    (job / "coordinator.pid").mkdir()
    epilog.clean(settings, 7)
    assert not job.exists()


def test_the_time_that_the_start_has_taken_counts(
    settings: Settings, job: Path, sleeper: Callable[[], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine what is left must be enough for the end by force."""
    coordinator = sleeper()
    note(job / "coordinator.pid", coordinator.pid)
    monkeypatch.setattr(epilog, "_STOP_SECONDS", 100.0)
    monkeypatch.setattr(epilog, "_age", lambda: 101.0)
    monkeypatch.setattr(epilog, "_LEAST_SECONDS", 0.1)
    thread = serve(job, None)
    before = time.monotonic()
    epilog.clean(settings, 7)
    assert time.monotonic() - before < 100
    thread.join()
    assert coordinator.wait(60) == -signal.SIGKILL


def test_the_age_of_a_process() -> None:
    code = "import time; time.sleep(0.5); from slurmckpt.hooks.epilog import _age; print(_age())"
    environment = {**os.environ, "PYTHONPATH": str(Path(slurmckpt.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert 0.4 < float(done.stdout) < 30


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
