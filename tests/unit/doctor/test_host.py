"""What is found out about a host before anything is checked."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from slurmckpt.capture import criu
from slurmckpt.capture.criu import CriuError, Installation
from slurmckpt.doctor import host as host_module
from slurmckpt.doctor.host import Cluster, Host, examine
from slurmckpt.errors import SlurmError
from slurmckpt.slurm.port import NodeInfo, PartitionInfo, SlurmPort
from tests.unit.doctor.world import CONFIG, NODE, World

# Above the kernel's highest pid.
NOBODY = 2**22 + 1


class Port:
    """A controller that knows one node; silent: it does not answer."""

    def __init__(self, silent: bool = False) -> None:
        self.silent = silent

    async def config(self) -> dict[str, str]:
        if self.silent:
            raise SlurmError("scontrol show config: no answer")
        return dict(CONFIG)

    async def partitions(self) -> list[PartitionInfo]:
        return [PartitionInfo("debug", "OFF", 0)]

    async def node(self, name: str) -> NodeInfo:
        if name != "n1":
            raise SlurmError(f"Slurm knows no node {name}")
        return NODE

    async def nodes(self) -> list[NodeInfo]:
        return [NODE]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    monkeypatch.setattr(criu, "find", lambda program, real_id: Installation("/usr/sbin/criu", "4.2.1", False))
    monkeypatch.setattr(host_module, "installed_release", lambda: "26.05")
    monkeypatch.setattr(psutil, "process_iter", lambda names: [])


def look(tmp_path: Path, name: str, port: Port | None = None, node: str | None = None) -> Host:
    file = tmp_path / "slurmckpt.toml"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: name)
        return asyncio.run(examine(cast("SlurmPort", port or Port()), node, file))


def test_roles(tmp_path: Path) -> None:
    assert look(tmp_path, "n1.example.org").roles == ["compute node"]
    assert look(tmp_path, "ctl.example.org").roles == ["controller"]
    assert look(tmp_path, "elsewhere").roles == ["login host"]
    assert look(tmp_path, "ctl", node="n1").roles == ["compute node", "controller"]


def test_daemons_tell_when_the_controller_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemons = [SimpleNamespace(info={"name": name}, pid=pid) for name, pid in [("slurmd", NOBODY), ("sh", NOBODY + 1)]]
    monkeypatch.setattr(psutil, "process_iter", lambda names: daemons)
    found = look(tmp_path, "x", Port(silent=True))
    assert (found.slurmd, found.slurmctld, found.roles) == (NOBODY, None, ["compute node"])
    assert (found.cluster, found.why_no_cluster) == (None, "scontrol show config: no answer")
    daemons[0].info["name"] = "slurmd-wlm"
    assert look(tmp_path, "x").slurmd == NOBODY


def test_a_daemon_in_a_container_is_not_this_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "process_iter", lambda names: [SimpleNamespace(info={"name": "slurmd"}, pid=NOBODY)])
    monkeypatch.setattr(host_module, "_pid_namespace", lambda pid: "pid:[2]" if pid == NOBODY else "pid:[1]")
    assert look(tmp_path, "x").slurmd is None


def test_why_there_is_no_node(tmp_path: Path) -> None:
    cluster = look(tmp_path, "elsewhere").cluster
    assert cluster is not None
    assert cluster.node is None
    assert cluster.why_no_node.startswith("Slurm has no node with the host name elsewhere")


def test_faulty_settings_and_no_criu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(program: str, real_id: str) -> Installation:
        raise CriuError("CRIU is not installed")

    monkeypatch.setattr(criu, "find", missing)
    (tmp_path / "slurmckpt.toml").write_text("[store]\nkept = 2\n")
    found = look(tmp_path, "n1")
    assert "unknown key store.kept (did you mean keep?)" in found.why_no_settings
    assert found.settings.store.keep == 2
    assert (found.criu, found.why_no_criu) == (None, "CRIU is not installed")


def test_parameters_that_stand_several_times() -> None:
    cluster = Cluster({"Prolog[0]": "/a", "Prolog[1]": "/b", "PrologFlags": "x", "PrologSlurmctld[0]": "/c"}, None)
    assert cluster.values("Prolog") == ["/a", "/b"]
    assert Cluster({"Prolog": ""}, None).values("Prolog") == []
    assert Cluster({"X": "a, b,,c"}, None).words("X") == ["a", "b", "c"]


def test_a_host_of_the_world_is_a_node(world: World) -> None:
    assert [host.roles for host in (world.host(), world.login(), world.controller())] == [
        ["compute node"],
        ["login host"],
        ["controller"],
    ]
