"""`slurmckpt doctor` on hosts as an administrator would have installed them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.harness import Cluster


def doctor(cluster: Cluster, node: str, user: str = "root") -> dict[str, Any]:
    """What it finds, with the findings by name."""
    done = cluster.run("slurmckpt", "doctor", "--json", user=user, node=node, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if found["problems"] else 0)
    found["findings"] = {finding["check"]: finding for finding in found["findings"]}
    return found


@pytest.mark.parametrize(
    ("node", "role"), [("n1", "compute node"), ("n2", "compute node"), ("ctl", "controller"), ("login", "login host")]
)
@pytest.mark.parametrize("user", ["root", "alice"])
def test_no_problem_anywhere(cluster: Cluster, node: str, role: str, user: str) -> None:
    found = doctor(cluster, node, user)
    assert [finding for finding in found["findings"].values() if finding["verdict"] == "problem"] == []
    assert (found["roles"], found["root"]) == ([role], user == "root")


def test_what_the_requeue_hook_decides_is_written_down(cluster: Cluster) -> None:
    assert doctor(cluster, "ctl")["findings"]["log"]["verdict"] == "ok"


def test_what_registering_changes(cluster: Cluster) -> None:
    cluster.run("slurmckpt", "node", "register", user="root", node="n1")
    assert doctor(cluster, "n1")["findings"]["node feature"]["verdict"] == "ok"
    cluster.root("n1", "scontrol update NodeName=n1 AvailableFeatures= ActiveFeatures=")
    assert doctor(cluster, "n1")["findings"]["node feature"]["verdict"] == "warning"


def test_what_is_broken_is_found(cluster: Cluster) -> None:
    # Covered, not changed: a file that a host has changed stays its own, also when a newer one is installed below it.
    libexec = "/usr/libexec/slurmckpt"
    cluster.root("n1", f"cp -a {libexec} /run/broken && chmod 0777 /run/broken/shim && rm -r /run/broken/criu-plugins")
    cluster.root("n1", f"mount --bind /run/broken {libexec}")
    try:
        found = doctor(cluster, "n1")["findings"]["programs"]
    finally:
        cluster.root("n1", f"umount {libexec} && rm -r /run/broken")
    assert (found["verdict"], "shim can be written by others than root (mode 0777)" in found["text"]) == (
        "problem",
        True,
    )
