"""restart.so finds out where a stopped process gets its memory, and has it get it there again."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.pod.harness import POD

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="there it does nothing"),
    pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="a kernel without NUMA"),
]

# uapi/linux/ptrace.h
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
_WALL = 0x40000000
# Takes a policy, and answers each line with its own: set_mempolicy(2) and get_mempolicy(2) by their numbers.
CHILD = """
import ctypes, sys
c = ctypes.CDLL(None, use_errno=True)
mode, nodes = int(sys.argv[1]), ctypes.c_ulong(int(sys.argv[2]))
assert c.syscall(238, mode, ctypes.byref(nodes) if mode else None, 64 if mode else 0) == 0, ctypes.get_errno()
for line in sys.stdin:
    mode, nodes = ctypes.c_int(-1), (ctypes.c_ulong * 16)()
    c.syscall(239, ctypes.byref(mode), nodes, 1025, None, 0)
    print(mode.value, nodes[0], flush=True)
"""
libc = ctypes.CDLL(None, use_errno=True)
Child = subprocess.Popen[str]


def start(children: list[Child], mode: int, nodes: int) -> Child:
    command = [sys.executable, "-c", CHILD, str(mode), str(nodes)]
    children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    return children[-1]


def policy(child: Child) -> str:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write("?\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


def stopped(child: Child, action: str, directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    assert libc.ptrace(PTRACE_SEIZE, child.pid, None, None) == 0
    assert libc.ptrace(PTRACE_INTERRUPT, child.pid, None, None) == 0
    assert os.WIFSTOPPED(os.waitpid(child.pid, _WALL)[1])
    try:
        getattr(ctypes.CDLL(str(POD / "restart.so")), action)(child.pid, descriptor)
    finally:
        assert libc.ptrace(PTRACE_DETACH, child.pid, None, None) == 0
        os.close(descriptor)


# MPOL_PREFERRED, MPOL_BIND, MPOL_INTERLEAVE, MPOL_LOCAL; MPOL_BIND with MPOL_F_STATIC_NODES, with MPOL_F_RELATIVE_NODES
@pytest.mark.parametrize(("mode", "nodes"), [(1, 1), (2, 1), (3, 1), (4, 0), (0x8002, 1), (0x4002, 1)])
def test_it_is_set_again(children: list[Child], tmp_path: Path, mode: int, nodes: int) -> None:
    child = start(children, mode, nodes)
    assert policy(child) == f"{mode} {nodes}"
    stopped(child, "policy_save", tmp_path)
    assert policy(child) == f"{mode} {nodes}"
    note = tmp_path / "memory-policy"
    (line,) = note.read_text().splitlines()
    assert line.split()[:3] == [str(child.pid), str(mode), f"{nodes:x}"]
    other = start(children, 0, 0)
    assert policy(other) == "0 0"
    note.write_text(line.replace(str(child.pid), str(other.pid), 1) + "\n")
    stopped(other, "policy_restore", tmp_path)
    assert policy(other) == f"{mode} {nodes}"


def test_the_usual_one_is_not_noted(children: list[Child], tmp_path: Path) -> None:
    child = start(children, 0, 0)
    assert policy(child) == "0 0"
    stopped(child, "policy_save", tmp_path)
    assert not list(tmp_path.iterdir())
    stopped(child, "policy_restore", tmp_path)
    assert policy(child) == "0 0"


def test_nodes_that_are_not_there_change_nothing(children: list[Child], tmp_path: Path) -> None:
    child = start(children, 0, 0)
    assert policy(child) == "0 0"
    (tmp_path / "memory-policy").write_text(f"{child.pid} 2 8000000000000000 " + "0 " * 15 + "\n")
    stopped(child, "policy_restore", tmp_path)
    assert policy(child) == "0 0"
