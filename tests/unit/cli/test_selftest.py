"""`slurmckpt selftest --gpu`: what is kept of its answer, and what `--once` makes of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurmckpt import config
from slurmckpt.capture.cuda.selftest import Answer
from slurmckpt.cli import selftest
from slurmckpt.config import Paths, Settings
from slurmckpt.coordinator import gpu_answer


class Node:
    """A node with one GPU, on which each trial gives the next of these answers."""

    def __init__(self, directory: Path) -> None:
        self.settings = Settings(paths=Paths(run=directory / "run"))
        self.facts = {"gpu.driver": "580.1", "gpu.count": "1"}
        self.answers: list[Answer] = []

    async def trial(self, settings: Settings, amount: int) -> Answer:
        return self.answers.pop(0)

    def run(self, *options: str) -> Result:
        return CliRunner().invoke(selftest.command, ["--gpu", *options])

    @property
    def known(self) -> str | None:
        return gpu_answer.known(self.settings, {**self.facts, "host.arch": "x86_64"})


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    monkeypatch.setattr(config, "load", lambda: made.settings)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(selftest, "gpu", lambda: dict(made.facts))
    monkeypatch.setattr(selftest, "_try", made.trial)
    return made


@pytest.mark.parametrize(
    ("failure", "status", "said"),
    [("", 0, "GPU state can be captured"), ("801", 1, "GPU state cannot be captured: 801")],
)
def test_once_a_boot(node: Node, failure: str, status: int, said: str) -> None:
    node.answers = [Answer(failure)]
    first = node.run("--once")
    assert (first.exit_code, node.known) == (status, failure) and said in first.output
    again = node.run("--once")
    assert (again.exit_code, again.output) == (status, f"{said} (found since this node was booted)\n")
    # Another driver, and so it is tried again; and always without --once.
    node.facts["gpu.driver"] = "610.1"
    node.answers = [Answer(), Answer("304")]
    assert node.run("--once").exit_code == 0
    assert node.run().exit_code == 1
    assert node.known == "304" and not node.answers


def test_what_could_not_be_tried_is_no_answer(node: Node) -> None:
    """A GPU in use says nothing about the node: jobs must not pay for it until the next boot."""
    node.answers = [Answer("cuMemAlloc 2", conclusive=False), Answer("801"), Answer("cuMemAlloc 2", conclusive=False)]
    done = node.run("--once")
    assert done.exit_code == 1 and "it was not tried: cuMemAlloc 2" in done.output
    assert node.known is None
    assert node.run("--once").exit_code == 1 and node.known == "801"
    assert node.run().exit_code == 1 and node.known == "801"


def test_a_node_without_a_gpu(node: Node) -> None:
    """The unit may be enabled everywhere."""
    node.facts = {}
    assert (node.run("--once").exit_code, node.run("--once").output) == (0, "")
    assert node.run().exit_code == 1
