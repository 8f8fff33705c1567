"""Whether a job has its user to itself on a node: by cgroups, and by parents where Slurm makes none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt.capture import procfs
from slurmckpt.coordinator import company

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: processes of another user")
# Nobody else's processes have it.
ALONE = 54329
SLEEPS = f"import os; os.setuid({ALONE}); print(flush=True); input()"


@pytest.fixture
def process() -> Iterator[int]:
    """One of that user's, a child of this process."""
    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sleeping:
        assert sleeping.stdout is not None
        sleeping.stdout.readline()
        yield sleeping.pid
        sleeping.kill()


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is no coordinator: what it has started is not the job's."""
    monkeypatch.setattr(os, "getpid", lambda: 1)


def test_nobody_is_alone(stranger: None) -> None:
    assert company.is_alone(ALONE, [], set())


def test_the_processes_of_the_pods_are_the_jobs(process: int, stranger: None) -> None:
    assert company.is_alone(ALONE, [], {process})
    assert not company.is_alone(ALONE, [], set())


def test_what_the_coordinator_has_started_is_the_jobs(process: int) -> None:
    assert company.is_alone(ALONE, [], set())


def test_what_a_slurmstepd_of_the_job_has_started_is(
    process: int, stranger: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pid 1 of a pod stands below one of them, too."""
    jobs = {111: "5", 112: "5"}
    monkeypatch.setattr(company, "_ancestors", lambda pid: {77: [111], process: [112]}.get(pid, []))
    monkeypatch.setattr(company, "_title", lambda pid: jobs.get(pid, ""))
    assert company.is_alone(ALONE, [77], set())
    jobs[112] = "6"
    assert not company.is_alone(ALONE, [77], set())


@pytest.mark.parametrize(("user", "title"), [(0, "5"), (ALONE, "")])
def test_a_slurmstepd_is_known_by_its_title_and_is_roots(user: int, title: str) -> None:
    command = ["slurmstepd: [5.0]", "-c", SLEEPS.replace(str(ALONE), str(user))]
    with subprocess.Popen(
        command, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as pretending:
        assert pretending.stdout is not None
        pretending.stdout.readline()
        assert company._title(pretending.pid) == title
        pretending.kill()
    assert company._title(os.getpid()) == ""


def test_what_is_in_a_cgroup_of_the_job_is(
    process: int, stranger: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    groups = {77: "0::/slurm/job_5/step_batch/user", process: "0::/slurm/job_5/step_0/task_1"}
    monkeypatch.setattr(company, "_ancestors", lambda pid: [])
    monkeypatch.setattr(procfs, "read", lambda path: groups.get(int(path.split("/")[2]), "0::/x").encode())
    assert company.is_alone(ALONE, [77], set())
    groups[process] = "0::/slurm/job_6/step_batch/user"
    assert not company.is_alone(ALONE, [77], set())
    groups[process] = groups[77] = "0::/"
    assert not company.is_alone(ALONE, [77], set())
