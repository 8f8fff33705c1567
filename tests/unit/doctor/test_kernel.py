"""What the kernel offers."""

from __future__ import annotations

import os

import pytest

from slurmckpt.doctor import kernel
from tests.unit.doctor.world import World

KINDS = ("mnt", "pid", "ipc", "net", "time")


@pytest.fixture
def proc(world: World) -> World:
    world.write("proc/self/status", "")
    world.write("proc/sys/kernel/ns_last_pid", "7")
    (world.top / "proc/self/ns").mkdir()
    for kind in KINDS:
        (world.top / "proc/self/ns" / kind).symlink_to(f"{kind}:[1]")
    return world


def test_pids(proc: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel.pids(proc.host()).verdict == "ok"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert kernel.pids(proc.host()).verdict == "problem"
    assert kernel.pids(proc.host(root=False)).verdict == "ok"
    (proc.top / "proc/sys/kernel/ns_last_pid").unlink()
    assert "CONFIG_CHECKPOINT_RESTORE" in kernel.pids(proc.host()).text
    assert kernel.pids(proc.login()).verdict == "skipped"


def test_no_proc(world: World) -> None:
    assert kernel.pids(world.host()).text == f"{world.top}/proc is not mounted"


def test_namespaces(proc: World) -> None:
    assert kernel.namespaces(proc.host()).verdict == "ok"
    (proc.top / "proc/self/ns/time").unlink()
    assert kernel.namespaces(proc.host()).verdict == "warning"
    (proc.top / "proc/self/ns/ipc").unlink()
    found = kernel.namespaces(proc.host())
    assert (found.verdict, found.text) == ("problem", "the kernel has no namespaces of kind ipc")


def test_a_limit_of_no_namespaces(proc: World) -> None:
    proc.write("proc/sys/user/max_pid_namespaces", "0\n")
    found = kernel.namespaces(proc.host())
    assert (found.verdict, found.remedy) == ("problem", "sysctl user.max_pid_namespaces=100000")
    proc.write("proc/sys/user/max_pid_namespaces", "10\n")
    assert kernel.namespaces(proc.host()).verdict == "ok"
