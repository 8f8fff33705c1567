"""`slurmckpt checkpoint`: asks the coordinator here, or goes to where it is; and the question itself."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slurmckpt.cli import checkpoint, main
from slurmckpt.cli.control import NoCoordinator, ask
from slurmckpt.config import Paths, Settings
from slurmckpt.errors import SlurmckptError, SlurmError
from slurmckpt.slurm.port import JobInfo


class Node:
    """A node with, maybe, the coordinator of job 7."""

    def __init__(self, top: Path) -> None:
        self.settings = Settings(paths=Paths(run=top))
        self.directory = top / "7"
        self.asked: list[Any] = []

    def coordinator(self, answer: bytes | None) -> None:
        """Answers one question; with None it closes the connection instead."""
        self.directory.mkdir()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.directory / "control.sock"))
        listener.listen()

        def serve() -> None:
            with listener:
                connection, _ = listener.accept()
                with connection:
                    self.asked.append(json.loads(connection.makefile().readline()))
                    if answer is not None:
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["checkpoint", *arguments])


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    found = Node(tmp_path)
    monkeypatch.setattr("slurmckpt.config.load", lambda: found.settings)
    return found


def test_on_the_jobs_node(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch, [job()])
    node.coordinator(b'{"checkpoint": 3, "bytes": 436000000, "freeze_seconds": 0.28}\n')
    done = node.run("7")
    assert (done.exit_code, done.output) == (0, "job 7: checkpoint #3 committed, 436 MB, frozen for 0.28 s\n")
    assert node.asked == [{"verb": "checkpoint"}]


def test_in_the_job_itself_it_only_asks(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch, [job()])
    node.coordinator(b'{"requested": true}\n')
    done = node.run("7")
    wanted = "job 7: checkpoint requested; it is taken when this command has ended\n"
    assert (done.exit_code, done.output) == (0, wanted)


def test_a_checkpoint_that_is_not_taken(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch, [job()])
    node.coordinator(b'{"error": "process 101 uses io_uring"}\n')
    done = node.run("7")
    assert (done.exit_code, done.output) == (1, "Error: process 101 uses io_uring\n")


def here(node: Node) -> Any:
    done = node.run("--here", "7", "5_2")
    assert done.exit_code == 0
    return json.loads(done.output)


def test_here_passes_on_what_the_coordinator_says(node: Node) -> None:
    node.coordinator(b'{"checkpoint": 3, "bytes": 436000000, "freeze_seconds": 0.28}\n')
    assert here(node) == {"checkpoint": 3, "bytes": 436000000, "freeze_seconds": 0.28}


def test_here_passes_on_why_there_is_none(node: Node) -> None:
    node.coordinator(b'{"error": "process 101 uses io_uring"}\n')
    assert here(node) == {"error": "process 101 uses io_uring"}


def test_here_means_here(node: Node) -> None:
    """And never fails: srun would add a line of its own."""
    assert here(node)["error"].startswith("it runs without checkpoints: none were asked for")


def job(
    job_id: int = 7,
    state: str = "RUNNING",
    node: str = "n3",
    uid: int | None = None,
    array: tuple[int, int] | None = None,
) -> JobInfo:
    return JobInfo(
        job_id=job_id,
        address=str(job_id),
        state=frozenset(state.split()),
        user_id=os.getuid() if uid is None else uid,
        features="",
        prefer="",
        nodes=(node,) if node else (),
        node_count=1,
        partition="debug",
        restart_count=0,
        admin_comment="",
        requeue=True,
        array_id=array[0] if array else 0,
        array_task=array[1] if array else None,
    )


class FakeSlurm:
    """Answers as Slurm does: with the job of this number, or with all tasks of the array of this number."""

    def __init__(self, jobs: list[JobInfo], here: str = "") -> None:
        self.jobs = jobs
        self.here = here

    async def array(self, number: int) -> list[JobInfo]:
        found = [each for each in self.jobs if number in (each.job_id, each.array_id)]
        if not found:
            raise SlurmError(f"Slurm knows no job {number}")
        return found

    async def node(self, name: str) -> SimpleNamespace:
        if name != self.here:
            raise SlurmError(f"Slurm knows no node {name}")
        return SimpleNamespace(name=name, hostname=name)

    async def nodes(self) -> list[SimpleNamespace]:
        return []


def elsewhere(
    monkeypatch: pytest.MonkeyPatch,
    jobs: list[JobInfo],
    srun: str | None = "/usr/bin/srun",
    status: int = 0,
    answer: str = '{"checkpoint": 3, "bytes": 1000, "freeze_seconds": 0.28}\n',
) -> list[list[str]]:
    """What is executed to reach the jobs' nodes."""
    executed: list[list[str]] = []

    def run(words: list[str], stdout: int, text: bool) -> subprocess.CompletedProcess[str]:
        assert (stdout, text) == (subprocess.PIPE, True)
        executed.append(words)
        return subprocess.CompletedProcess(words, status, answer)

    monkeypatch.setattr(checkpoint, "select", lambda: FakeSlurm(jobs))
    monkeypatch.setattr(shutil, "which", lambda name: srun)
    monkeypatch.setattr(subprocess, "run", run)
    return executed


def test_on_another_host_it_runs_itself_on_the_jobs_node(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    executed = elsewhere(monkeypatch, [job()])
    done = node.run("7")
    assert (done.exit_code, done.output) == (0, "job 7: checkpoint #3 committed, 1.0 kB, frozen for 0.28 s\n")
    ((srun, *options, program, verb, here, raw, name),) = executed
    assert (srun, program, verb, here, raw, name) == ("/usr/bin/srun", "slurmckpt", "checkpoint", "--here", "7", "7")
    assert {"--jobid=7", "--overlap", "--nodelist=n3", "--ntasks=1", "--checkpoint-interval=off"} <= set(options)


@pytest.mark.parametrize(
    ("status", "answer", "complaint"),
    [
        (0, '{"error": "process 101 uses io_uring"}', "process 101 uses io_uring"),
        # srun has said why.
        (1, "", "node n3 gave no answer (srun ended with status 1)"),
        (0, "", "node n3 gave no answer (srun ended with status 0)"),
        (0, "[]", "node n3 gave no answer (srun ended with status 0)"),
        (2, '{"checkpoint": 3, "bytes": 1, "freeze_seconds": 1}', "node n3 gave no answer (srun ended with status 2)"),
    ],
)
def test_a_failure_on_the_jobs_node(
    node: Node, monkeypatch: pytest.MonkeyPatch, status: int, answer: str, complaint: str
) -> None:
    elsewhere(monkeypatch, [job()], status=status, answer=answer)
    done = node.run("7")
    assert (done.exit_code, done.output) == (1, f"Error: {complaint}\n")


ARRAY = [job(8, array=(7, 1)), job(7, array=(7, 2), node="n4"), job(9, "COMPLETED", array=(7, 3))]


@pytest.mark.parametrize(
    ("name", "reached"),
    [
        ("7_1", [("8", "7_1", "n3")]),
        # The raw id of task 2 is that of the array, and so means the array.
        ("7_2", [("7", "7_2", "n4")]),
        ("7", [("8", "7_1", "n3"), ("7", "7_2", "n4")]),
        ("8", [("8", "7_1", "n3")]),
    ],
)
def test_a_task_of_an_array_or_all_that_run(
    node: Node, monkeypatch: pytest.MonkeyPatch, name: str, reached: list[tuple[str, str, str]]
) -> None:
    executed = elsewhere(monkeypatch, ARRAY)
    assert node.run(name).exit_code == 0
    assert [(words[-2], words[-1]) for words in executed] == [each[:2] for each in reached]
    assert [f"--nodelist={each[2]}" in words for words, each in zip(executed, reached, strict=True)] == [True] * len(
        reached
    )


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("7_3", "Error: job 7_3 is not running (state COMPLETED)"),
        ("7_4", "Error: Slurm knows no job 7_4"),
        ("10", "Error: Slurm knows no job 10"),
    ],
)
def test_a_task_that_does_not_run(node: Node, monkeypatch: pytest.MonkeyPatch, name: str, complaint: str) -> None:
    assert elsewhere(monkeypatch, ARRAY) == []
    done = node.run(name)
    assert (done.exit_code, done.output) == (1, complaint + "\n")


def test_one_task_that_fails_does_not_keep_the_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.coordinator(b'{"error": "process 101 uses io_uring"}\n')
    executed = elsewhere(monkeypatch, ARRAY)
    done = node.run("7")
    assert (done.exit_code, done.stderr) == (1, "Error: job 7_2: process 101 uses io_uring\n")
    assert done.stdout.startswith("job 7_1: checkpoint #3 committed")
    assert [words[-1] for words in executed] == ["7_1"]


def test_a_job_that_does_not_run(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    executed = elsewhere(monkeypatch, [job(state="PENDING REQUEUED", node="")])
    done = node.run("7")
    assert (done.exit_code, done.output) == (1, "Error: job 7 is not running (state PENDING REQUEUED)\n")
    assert executed == []


def test_the_job_of_somebody_else(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    executed = elsewhere(monkeypatch, [job(uid=0)])
    done = node.run("7")
    assert (done.exit_code, done.output) == (1, "Error: job 7 belongs to root; only root and its owner may do that\n")
    assert executed == []


def test_on_the_jobs_node_slurm_is_not_needed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch, [])
    node.coordinator(b'{"checkpoint": 3, "bytes": 1000, "freeze_seconds": 0.28}\n')
    assert node.run("7").output == "job 7: checkpoint #3 committed, 1.0 kB, frozen for 0.28 s\n"


@pytest.mark.parametrize(("uid", "owner"), [(1000, 1000), (0, 1000)])
def test_on_the_jobs_node_without_a_coordinator(
    node: Node, monkeypatch: pytest.MonkeyPatch, uid: int, owner: int
) -> None:
    """Nobody else could say more: no srun is tried."""
    executed = elsewhere(monkeypatch, [])
    monkeypatch.setattr(checkpoint, "select", lambda: FakeSlurm([job(uid=owner)], here="n3"))
    monkeypatch.setattr(socket, "gethostname", lambda: "n3")
    monkeypatch.setattr(os, "getuid", lambda: uid)
    done = node.run("7")
    assert (done.exit_code, executed) == (1, [])
    assert done.output.startswith("Error: it runs without checkpoints: none were asked for")


def test_root_on_another_host(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm lets root start no step in another's job; in its own it does."""
    executed = elsewhere(monkeypatch, [job(uid=4711)])
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert node.run("7").output == (
        "Error: root can ask for it on node n3 only: Slurm starts no step of root's in a job of user id 4711\n"
    )
    assert executed == []
    executed = elsewhere(monkeypatch, [job(uid=0)])
    assert node.run("7").exit_code == 0
    assert len(executed) == 1


def test_without_srun(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch, [job()], srun=None)
    done = node.run("7")
    assert (done.exit_code, done.output) == (1, "Error: srun is not on PATH; it is needed to reach the job's node\n")


@pytest.mark.parametrize(
    "name", ["x", "0", "7_", "_1", "7_1_2", "7_x", "-1", "4294967295", "7_4294967295", "\u0667", "07"]
)
def test_what_is_no_job(node: Node, name: str) -> None:
    done = node.run("--", name)
    assert done.exit_code == 2
    assert f"JOB must be a job id such as 12, or 12_3 for a task of an array, not {name!r}" in done.output


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (None, "the coordinator of job 7 ended before it answered"),
        (b"", "the coordinator of job 7 ended before it answered"),
        (b"nonsense\n", "the coordinator of job 7 gave no whole answer"),
        (b'{"checkpoint": 3', "the coordinator of job 7 gave no whole answer"),
        (b'{"error": "why\\nnot"}\n', "why\\nnot"),
    ],
)
def test_answers_that_are_none(node: Node, answer: bytes | None, complaint: str) -> None:
    node.coordinator(answer)
    with pytest.raises(SlurmckptError) as raised:
        ask(node.settings, 7, "checkpoint", 5.0)
    assert str(raised.value) == complaint
    assert not isinstance(raised.value, NoCoordinator)


def test_a_coordinator_that_does_not_answer(node: Node) -> None:
    node.directory.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(node.directory / "control.sock"))
        listener.listen()
        with pytest.raises(SlurmckptError, match="the coordinator of job 7 does not answer: timed out"):
            ask(node.settings, 7, "status", 0.05)


def test_a_socket_that_a_dead_coordinator_left(node: Node) -> None:
    node.directory.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(node.directory / "control.sock"))
    with pytest.raises(NoCoordinator, match="no coordinator of job 7 runs on this node"):
        ask(node.settings, 7, "status", 5.0)
