"""`slurmckpt node register` and `slurmckpt fingerprint`, from the command line to scontrol."""

from __future__ import annotations

import json
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slurmckpt import config
from slurmckpt.capture import criu
from slurmckpt.cli import fingerprint as fingerprint_command
from slurmckpt.cli import main
from slurmckpt.cli import node as node_command
from slurmckpt.config import Fingerprint, Settings
from slurmckpt.errors import SlurmckptError
from slurmckpt.fingerprint.node import node_feature

FACTS = {"host.kernel": "6.18.44", "host.os": "Debian 14"}
F = node_feature(FACTS)
STALE = "slurmckpt-ffffffffffff"


@pytest.fixture(autouse=True)
def this_node(monkeypatch: pytest.MonkeyPatch, scontrol: Any) -> None:
    monkeypatch.setenv("PATH", str(scontrol.home))
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "n1.example.org")
    monkeypatch.setattr(criu, "find", lambda program, real_id: SimpleNamespace(version="4.2.1"))
    monkeypatch.setattr(config, "load", Settings)
    for module in (node_command, fingerprint_command):
        monkeypatch.setattr(module, "node_fingerprint", lambda settings, version: dict(FACTS))


def cluster(scontrol: Any, **hostnames: str) -> None:
    records = [
        {"name": name, "hostname": host, "state": ["IDLE"], "features": ["a", STALE], "active_features": ["a"]}
        for name, host in hostnames.items()
    ]
    for record in records:
        scontrol.answer(f"show node {record['name']} --json", json.dumps({"nodes": [record]}))
    scontrol.answer("show node --json", json.dumps({"nodes": records}))
    scontrol.answer("update")


def register(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["node", "register", *arguments])


def updates(scontrol: Any) -> list[list[str]]:
    return [call[1:] for call in scontrol.calls() if call[0] == "update"]


def test_register(scontrol: Any) -> None:
    cluster(scontrol, n1="n1", n2="n2")
    result = register()
    assert result.output == f"n1: registered {F}, dropped {STALE}; features now: a,{F}\n"
    assert updates(scontrol) == [["NodeName=n1", f"AvailableFeatures=a,{F}", f"ActiveFeatures=a,{F}"]]


def test_dry_run(scontrol: Any) -> None:
    cluster(scontrol, n1="n1")
    result = register("--dry-run")
    assert result.output == f"n1: would register {F}, without {STALE}; features would be: a,{F}\n"
    assert updates(scontrol) == []


def test_registered_before(scontrol: Any) -> None:
    record = {"name": "n1", "hostname": "n1", "features": [F], "active_features": [F]}
    scontrol.answer("show node", json.dumps({"nodes": [record]}))
    assert register().output == f"n1: {F} is registered\n"
    assert updates(scontrol) == []


@pytest.mark.parametrize("hostname", ["n1", "n1.example.org"])
def test_a_node_with_another_name_than_its_host(scontrol: Any, hostname: str) -> None:
    cluster(scontrol, gpu7=hostname, n2="n2")
    assert register().output.startswith("gpu7: registered")


def test_several_nodes_on_one_host(scontrol: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(scontrol, v1="n1", v2="n1")
    result = register()
    assert result.exit_code == 1
    assert (
        result.output
        == "Error: Slurm has 2 nodes (v1, v2) with the host name n1.example.org; give its NodeName with --node\n"
    )
    assert register("--node", "v2").output.startswith("v2: registered")
    monkeypatch.setenv("SLURMD_NODENAME", "v1")
    assert register().output.startswith("v1: registered")


def test_a_host_that_slurm_does_not_know(scontrol: Any) -> None:
    cluster(scontrol, n2="n2")
    result = register()
    assert result.exit_code == 1
    assert "Slurm has no node with the host name n1.example.org" in result.output


def test_slurm_refuses(scontrol: Any) -> None:
    scontrol.answer("update", errors="slurm_update error: Invalid user id\n", status=1)
    cluster(scontrol, n1="n1")
    result = register()
    assert (result.exit_code, result.output) == (
        1,
        "Error: scontrol update NodeName=n1: slurm_update error: Invalid user id\n",
    )


def test_without_criu_there_is_nothing_to_register(scontrol: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(program: str, real_id: str) -> None:
        raise SlurmckptError("CRIU is not installed")

    monkeypatch.setattr(criu, "find", missing)
    result = register()
    assert (result.exit_code, result.output) == (1, "Error: CRIU is not installed\n")


def show(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["fingerprint", *arguments])


def test_the_fingerprint_for_people() -> None:
    assert show().output.splitlines() == [
        f"node feature               {F}",
        "host.kernel   equal        6.18.44",
        "host.os       informative  Debian 14",
    ]


def test_the_fingerprint_for_programs() -> None:
    assert json.loads(show("--json").output) == {
        "node_feature": F,
        "fingerprint": FACTS,
        "rules": {"host.kernel": "equal", "host.os": "informative"},
    }


def test_the_sites_rules_are_shown_and_count(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(fingerprint=Fingerprint(rules={"host.kernel": "informative"}))
    monkeypatch.setattr(config, "load", lambda: settings)
    answer = json.loads(show("--json").output)
    assert answer["rules"]["host.kernel"] == "informative"
    assert answer["node_feature"] == node_feature({}) != F


def test_quiet_says_only_what_was_changed(scontrol: Any) -> None:
    cluster(scontrol, n1="n1")
    assert register("--quiet").output == f"n1: registered {F}, dropped {STALE}; features now: a,{F}\n"


def test_quiet_when_registered_before(scontrol: Any) -> None:
    record = {"name": "n1", "hostname": "n1", "features": [F], "active_features": [F]}
    scontrol.answer("show node", json.dumps({"nodes": [record]}))
    result = register("--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_a_node_named_as_its_host_does_not_ask_for_the_whole_cluster(scontrol: Any) -> None:
    cluster(scontrol, n1="n1", n2="n2")
    register()
    assert ["show", "node", "--json"] not in scontrol.calls()


def test_a_node_that_only_has_the_name_of_this_host_is_not_this_host(scontrol: Any) -> None:
    cluster(scontrol, n1="elsewhere", n9="n1")
    assert register().output.startswith("n9: registered")
