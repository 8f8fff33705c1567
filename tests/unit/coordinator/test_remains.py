"""The end by force: what is noted is killed, files go, and a newer incarnation stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import slurmckpt
from slurmckpt.config import Paths, Settings, Staging
from slurmckpt.coordinator import pointer, remains, scriptpaths
from slurmckpt.coordinator.remains import Incarnation, kill_noted
from slurmckpt.coordinator.scriptfile import ScriptFile
from tests.unit.awaiting import wait_until
from tests.unit.coordinator.parts import note


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(pointer, "PLACE", tmp_path / "place")
    (tmp_path / "staging" / "7").mkdir(parents=True)
    return Settings(paths=Paths(run=tmp_path / "run"), staging=Staging(path=tmp_path / "staging"))


@pytest.fixture
def job(settings: Settings) -> Path:
    """The run directory of job 7."""
    directory = settings.paths.run / "7"
    (directory / "pods").mkdir(parents=True)
    return directory


def test_a_pid_that_changes_hands_between_two_looks(
    job: Path, sleeper: Callable[[], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither killed nor waited for."""
    other = sleeper()
    note(job / "pods" / "0.pid", other.pid, 5)
    answers = iter([5, 6])
    monkeypatch.setattr(remains, "start_time", lambda pid: next(answers))
    before, descriptors = time.monotonic(), os.listdir("/proc/self/fd")
    kill_noted([job / "pods" / "0.pid"], 60)
    assert time.monotonic() - before < 60
    assert other.poll() is None
    assert os.listdir("/proc/self/fd") == descriptors


def test_all_are_killed_before_any_is_waited_for(
    job: Path, sleeper: Callable[[], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not end must not cost the others their end: the epilog has seconds."""
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
    kill_noted([job / "coordinator.pid", *sorted((job / "pods").iterdir())], 0.2)
    assert [child.wait(60) for child in others] == [-signal.SIGKILL] * 3
    assert stuck.poll() is None


def test_there_is_none(settings: Settings) -> None:
    with pytest.raises(FileNotFoundError):
        Incarnation(settings, 7)


def test_a_newer_incarnation_is_left_alone(
    settings: Settings, job: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    old = Incarnation(settings, 7)
    job.rename(job.with_name("old"))
    (job / "pods").mkdir(parents=True)
    other = sleeper()
    note(job / "coordinator.pid", other.pid)
    old.remove()
    old.close()
    assert other.poll() is None
    assert job.exists() and (settings.staging.path / "7").exists()


def test_one_at_a_time(settings: Settings, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remains, "_TURN_SECONDS", 0.1)
    first, second = Incarnation(settings, 7), Incarnation(settings, 7)
    first._take_turn()
    with pytest.raises(TimeoutError, match="somebody else is removing"):
        second.remove()
    assert job.exists()
    first.close()
    second.remove()
    second.close()
    assert not job.exists() and not (settings.staging.path / "7").exists()


HOOK = """
import sys
from pathlib import Path
from slurmckpt.config import Paths, Settings, Staging
from slurmckpt.coordinator.remains import Incarnation
run, staging = map(Path, sys.argv[1:3])
incarnation = Incarnation(Settings(paths=Paths(run=run), staging=Staging(path=staging)), 7)
incarnation.stand_by()
print("stands by", flush=True)
sys.stdin.read()
"""


def hook(settings: Settings) -> subprocess.Popen[bytes]:
    """An epilog that does nothing until its stdin ends, in a process group of its own as under timeout(1)."""
    command = [sys.executable, "-c", HOOK, str(settings.paths.run), str(settings.staging.path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(slurmckpt.__file__).parents[1])}
    process = subprocess.Popen(command, stdin=-1, stdout=-1, start_new_session=True, env=environment)
    assert process.stdout is not None and process.stdout.readline() == b"stands by\n"
    return process


def test_an_epilog_that_is_killed(
    settings: Settings, job: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    """Whoever stands by outlives its process group, and does what it did not come to do."""
    coordinator = sleeper()
    note(job / "coordinator.pid", coordinator.pid)
    with hook(settings) as process:
        assert coordinator.poll() is None
        os.killpg(process.pid, signal.SIGTERM)
        assert coordinator.wait(60) == -signal.SIGKILL
        wait_until(lambda: not job.exists() and not (settings.staging.path / "7").exists(), "all is removed")


def test_an_epilog_that_has_done_its_work(settings: Settings, job: Path) -> None:
    """Then who stands by goes, and touches nothing of the next incarnation."""
    with hook(settings) as process:
        job.rename(job.with_name("old"))
        job.mkdir()
        assert process.stdin is not None
        process.stdin.close()
        # The end of the pipe: nobody holds it any more.
        assert process.stdout is not None and process.stdout.read() == b""
        assert process.wait() == 0
    assert job.exists() and (settings.staging.path / "7").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the directories have to be root's")
def test_links_to_the_batch_script_go_with_the_job(settings: Settings, job: Path, tmp_path: Path) -> None:
    old = tmp_path / "slurmd.n1/job00007/slurm_script"
    assert scriptpaths.lead([str(old)], ScriptFile("/var/spool/job00007/slurm_script", "digest"), job) == []
    assert old.parent.is_symlink()
    Incarnation(settings, 7).remove_files()
    assert not old.parent.parent.exists() and not job.exists()
