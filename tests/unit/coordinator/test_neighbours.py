"""What other jobs have left on the node goes when Slurm says that they are gone and nobody answers; all else stays."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest

from slurmckpt.config import Paths, Settings, Staging
from slurmckpt.coordinator import neighbours, pointer, spec
from slurmckpt.coordinator.proc import start_time
from slurmckpt.coordinator.spec import JobSpec
from slurmckpt.errors import NoSuchJobError, SlurmError
from slurmckpt.slurm.port import JobInfo, SlurmPort

HERE = JobInfo(7, "7", frozenset({"RUNNING"}), 0, "", "", ("n1",), 1, "debug", 0, "", True)
GONE = dataclasses.replace(HERE, state=frozenset({"COMPLETED"}))
AGAIN = dataclasses.replace(HERE, restart_count=1)
UNKNOWN = NoSuchJobError("Slurm knows no job 7")
SILENCE = SlurmError("slurmctld does not answer")


class FakeSlurm:
    def __init__(self, answer: JobInfo | SlurmError) -> None:
        self.answer = answer
        self.asked: list[int] = []

    async def job(self, job_id: int) -> JobInfo:
        self.asked.append(job_id)
        if isinstance(self.answer, SlurmError):
            raise self.answer
        return self.answer


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(pointer, "PLACE", tmp_path / "place")
    (tmp_path / "staging" / "7").mkdir(parents=True)
    (tmp_path / "run" / "own").mkdir(parents=True)
    return Settings(paths=Paths(run=tmp_path / "run"), staging=Staging(path=tmp_path / "staging"))


@pytest.fixture
def left(settings: Settings, job_spec: JobSpec) -> Path:
    """What job 7 has left, an hour old."""
    directory = settings.paths.run / "7"
    directory.mkdir()
    noted = directory / "spec.json"
    spec.save(job_spec, noted)
    os.utime(noted, (time.time() - 3600, time.time() - 3600))
    return directory


@pytest.fixture
def job_spec() -> JobSpec:
    return spec.from_environment(
        {
            "SLURM_CLUSTER_NAME": "c",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_USER": "root",
            "SLURM_JOB_UID": "0",
            "SLURM_JOB_GID": "0",
            "SLURMD_NODENAME": "n1",
        }
    )


def look(settings: Settings, answer: JobInfo | SlurmError, own: int = 8) -> list[int]:
    """One look at everything; which jobs Slurm was asked for."""
    slurm = FakeSlurm(answer)

    sleep, looked = asyncio.sleep, asyncio.Event()

    async def sleeps(seconds: float) -> None:
        assert seconds == neighbours._AGAIN_SECONDS
        looked.set()
        await sleep(seconds)

    async def scene() -> None:
        looking = asyncio.create_task(neighbours.look_after(settings, own, cast(SlurmPort, slurm)))
        await asyncio.wait_for(looked.wait(), 60)
        looking.cancel()
        await asyncio.wait([looking])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "sleep", sleeps)
        asyncio.run(scene())
    return slurm.asked


@pytest.mark.parametrize("answer", [GONE, AGAIN, UNKNOWN])
def test_a_job_that_has_left(settings: Settings, left: Path, answer: JobInfo | SlurmError) -> None:
    """Its coordinator hangs."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as coordinator:
        (left / "coordinator.pid").write_text(f"{coordinator.pid} {start_time(coordinator.pid)}\n")
        assert look(settings, answer) == [7]
        assert coordinator.wait(60) == -9
    assert not left.exists() and not (settings.staging.path / "7").exists()


@pytest.mark.parametrize("answer", [HERE, SILENCE])
def test_a_job_that_may_be_here(settings: Settings, left: Path, answer: JobInfo | SlurmError) -> None:
    assert look(settings, answer) == [7]
    assert left.exists()


def test_our_own(settings: Settings, left: Path) -> None:
    assert look(settings, GONE, own=7) == []
    assert left.exists()


def test_one_that_has_just_come(settings: Settings, left: Path) -> None:
    os.utime(left / "spec.json")
    assert look(settings, GONE) == []
    assert left.exists()


@pytest.mark.parametrize("content", [None, "nonsense"])
def test_one_that_says_nothing_of_itself(settings: Settings, left: Path, content: str | None) -> None:
    (left / "spec.json").unlink()
    if content is not None:
        (left / "spec.json").write_text(content)
    assert look(settings, GONE) == []
    assert left.exists()


@pytest.mark.parametrize("answers", [True, False])
def test_one_whose_coordinator_is_asked(
    settings: Settings, left: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setattr(neighbours, "_ANSWER_SECONDS", 60.0 if answers else 0.2)
    program = f"""
import socket, time
listener = socket.socket(socket.AF_UNIX)
listener.bind({str(left / "control.sock")!r})
listener.listen()
print("listens", flush=True)
connection, _ = listener.accept()
connection.recv(100)
connection.sendall(b'{{}}\\n') if {answers} else time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as coordinator:
        assert coordinator.stdout is not None and coordinator.stdout.readline() == b"listens\n"
        assert look(settings, GONE) == ([] if answers else [7])
        coordinator.kill()
    assert left.exists() == answers
