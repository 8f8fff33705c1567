"""`slurmckpt checkpoint`: asks the coordinator here, or goes to where it is; and the question itself."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slurmckpt.cli import checkpoint, main
from slurmckpt.cli.control import NoCoordinator, ask
from slurmckpt.config import Paths, Settings
from slurmckpt.errors import SlurmckptError


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


def test_on_the_jobs_node(node: Node) -> None:
    node.coordinator(b'{"checkpoint": 3, "bytes": 436000000, "freeze_seconds": 0.28}\n')
    done = node.run("7")
    assert (done.exit_code, done.output) == (0, "job 7: checkpoint #3 committed, 436 MB, frozen for 0.28 s\n")
    assert node.asked == [{"verb": "checkpoint"}]


def test_a_checkpoint_that_is_not_taken(node: Node) -> None:
    node.coordinator(b'{"error": "process 101 uses io_uring"}\n')
    done = node.run("7")
    assert (done.exit_code, done.output) == (1, "Error: process 101 uses io_uring\n")


def test_here_means_here(node: Node) -> None:
    done = node.run("--here", "7")
    assert (done.exit_code, done.output) == (1, "Error: no coordinator of job 7 runs on this node\n")


class FakeSlurm:
    def __init__(self, state: set[str], nodes: list[str]) -> None:
        self.info = SimpleNamespace(state=state, nodes=nodes)

    async def job(self, job_id: int) -> SimpleNamespace:
        assert job_id == 7
        return self.info


def elsewhere(monkeypatch: pytest.MonkeyPatch, slurm: FakeSlurm, srun: str | None = "/usr/bin/srun") -> list[list[str]]:
    """What is executed instead of this process."""
    executed: list[list[str]] = []

    def execv(path: str, words: list[str]) -> None:
        assert path == words[0]
        executed.append(words)

    monkeypatch.setattr(checkpoint, "select", lambda: slurm)
    monkeypatch.setattr(shutil, "which", lambda name: srun)
    monkeypatch.setattr(os, "execv", execv)
    return executed


def test_on_another_host_it_runs_itself_on_the_jobs_node(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    executed = elsewhere(monkeypatch, FakeSlurm({"RUNNING"}, ["n3"]))
    assert node.run("7").exit_code == 0
    ((srun, *options, program, verb, here, job),) = executed
    assert (srun, program, verb, here, job) == ("/usr/bin/srun", "slurmckpt", "checkpoint", "--here", "7")
    assert {"--jobid=7", "--overlap", "--nodelist=n3", "--ntasks=1", "--checkpoint-interval=off"} <= set(options)


def test_a_job_that_does_not_run(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    executed = elsewhere(monkeypatch, FakeSlurm({"PENDING", "REQUEUED"}, []))
    done = node.run("7")
    assert (done.exit_code, done.output) == (1, "Error: job 7 is not running (state PENDING REQUEUED)\n")
    assert executed == []


def test_without_srun(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch, FakeSlurm({"RUNNING"}, ["n3"]), srun=None)
    done = node.run("7")
    assert (done.exit_code, done.output) == (1, "Error: srun is not on PATH; it is needed to reach the job's node\n")


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
