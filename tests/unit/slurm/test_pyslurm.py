"""The pyslurm backend against doubles with the classes and rules of pyslurm 25.11 (its .pyx sources were read)."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from slurmckpt.errors import SlurmError
from slurmckpt.slurm.pyslurm import Pyslurm
from slurmckpt.slurm.scontrol import Scontrol
from slurmckpt.slurm.select import installed_release, select

F = "slurmckpt-0123456789ab"


class RPCError(Exception):
    pass


class Node:
    """pyslurm.Node: also the form in which changes are handed to modify()."""

    sent: ClassVar[list[tuple[str, dict[str, Any]]]] = []

    def __init__(self, name: str | None = None, **changes: Any) -> None:
        self.name = name
        self.changes = changes

    @staticmethod
    def load(name: str) -> Any:
        if name not in ("n1", "h1"):
            raise RPCError("Invalid node name specified")
        return SimpleNamespace(
            name="n1",
            hostname="h1",
            state="IDLE+DRAIN",
            available_features=["a", F],
            active_features=["a"],
            partitions=["debug"],
        )

    def modify(self, changes: Node) -> None:
        Node.sent.append((str(self.name), changes.changes))


class Job:
    sent: ClassVar[list[tuple[int, dict[str, Any]]]] = []

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id

    def modify(self, changes: Any) -> None:
        Job.sent.append((self.job_id, vars(changes)))


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    double = SimpleNamespace(
        __version__="26.5.1",
        RPCError=RPCError,
        Node=Node,
        Nodes=SimpleNamespace(load=lambda: {"n1": Node.load("n1")}),
        Job=Job,
        JobSubmitDescription=SimpleNamespace,
    )
    monkeypatch.setitem(sys.modules, "pyslurm", double)
    Node.sent.clear()
    Job.sent.clear()
    return double


def test_nodes(module: SimpleNamespace) -> None:
    port = Pyslurm(Scontrol())
    (node,) = asyncio.run(port.nodes())
    assert node == asyncio.run(port.node("n1"))
    assert (node.name, node.hostname, node.state) == ("n1", "h1", frozenset({"IDLE", "DRAIN"}))
    assert (node.features, node.active_features, node.partitions) == (("a", F), ("a",), frozenset({"debug"}))
    with pytest.raises(SlurmError, match="pyslurm: node nope: Invalid node name"):
        asyncio.run(port.node("nope"))
    # slurmctld answers to the host name, too.
    with pytest.raises(SlurmError, match=r"^Slurm knows no node h1$"):
        asyncio.run(port.node("h1"))


def test_updates(module: SimpleNamespace, scontrol: Any) -> None:
    scontrol.answer("show job 7 --json", json.dumps({"jobs": [{"job_id": 7}]}))
    port = Pyslurm(Scontrol(scontrol.program))
    asyncio.run(port.set_node_features("n1", ("a", F), (F,)))
    asyncio.run(port.set_admin_comment(7, "text"))
    assert Node.sent == [("n1", {"available_features": ["a", F], "active_features": [F]})]
    assert Job.sent == [(7, {"admin_comment": "text"})]


def test_one_task_of_an_array_and_not_the_array(module: SimpleNamespace, scontrol: Any, samples: Path) -> None:
    scontrol.answer("show job", (samples / "job-array.json").read_text())
    scontrol.answer("update")
    asyncio.run(Pyslurm(Scontrol(scontrol.program)).set_admin_comment(291, "text"))
    assert scontrol.calls()[-1] == ["update", "JobId=291_2", "AdminComment=text"]
    assert not Job.sent


def test_what_pyslurm_cannot_say_goes_to_scontrol(module: SimpleNamespace, scontrol: Any, samples: Path) -> None:
    """Its setters take "" for "no change", and its job state is one word."""
    scontrol.answer("show job 296 --json", (samples / "job-two-nodes-requeued.json").read_text())
    scontrol.answer("show config", "SLURM_VERSION = 26.05.5\n")
    scontrol.answer("show partition debug --json", '{"partitions": [{"name": "debug", "grace_time": 20}]}')
    scontrol.answer("update")
    scontrol.answer("requeue 296")
    port = Pyslurm(Scontrol(scontrol.program))
    assert asyncio.run(port.job(296)).pending
    assert asyncio.run(port.grace_time("debug")) == 20
    asyncio.run(port.requeue(296))
    asyncio.run(port.set_job_features(296, ""))
    asyncio.run(port.set_admin_comment(296, ""))
    asyncio.run(port.set_node_features("n1", (), ()))
    assert asyncio.run(port.version()) == (26, 5, 5)
    assert [call[1:] for call in scontrol.calls() if call[0] == "update"] == [
        ["JobId=296", "Features="],
        ["JobId=296", "AdminComment="],
        ["NodeName=n1", "AvailableFeatures=", "ActiveFeatures="],
    ]
    assert not Node.sent
    assert not Job.sent


@pytest.mark.parametrize(("installed", "backend"), [("26.05.5", Pyslurm), ("26.11.0", Scontrol), ("", Scontrol)])
def test_pyslurm_only_for_its_own_release(
    module: SimpleNamespace, scontrol: Any, monkeypatch: pytest.MonkeyPatch, installed: str, backend: type
) -> None:
    scontrol.answer("--version", f"slurm-wlm {installed}\n")
    monkeypatch.setenv("PATH", str(scontrol.home))
    assert type(select()) is backend


def test_without_pyslurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyslurm", None)
    assert type(select()) is Scontrol


def test_without_slurm() -> None:
    assert installed_release("/nowhere/scontrol") == "unknown"
