"""The plugin as a library: what NCCL gets from it, and when it must do nothing."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from slurmckpt.capture.gate.region import Region
from tests.unit.gate.test_processes import gated

GROUP_API = 1 << 8
P2P_API = 1 << 10

INIT = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.c_int),
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_void_p,
)
START = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
STOP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Profiler(ctypes.Structure):
    """ncclProfiler_v5_t."""

    _fields_ = [("name", ctypes.c_char_p), ("init", INIT), ("start", START), ("stop", STOP)]


def in_child(plugin: Path, environment: Mapping[str, str], body: str) -> int:
    """The exit status of a process that has loaded the plugin. body: Python, with `mask`, `context`, `operation()`."""
    program = f"""
import ctypes, os, sys, time; from pathlib import Path
sys.path[:0] = {sys.path!r}
from tests.unit.gate.test_plugin import *
plugin = Profiler.in_dll(ctypes.CDLL({str(plugin)!r}), "ncclProfiler_v5")
context, mask = ctypes.c_void_p(), ctypes.c_int(-1)
assert plugin.init(ctypes.byref(context), 7, ctypes.byref(mask), None, 1, 2, 0, None) == 0
def operation():
    event = (ctypes.c_uint64 * 64)(GROUP_API)
    handle = ctypes.c_void_p()
    assert plugin.start(context, ctypes.byref(handle), event) == 0
    assert handle.value and plugin.stop(handle) == 0
{body}
"""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode


def test_without_a_region_it_asks_for_nothing(built: Path, tmp_path: Path) -> None:
    environment = gated(built, tmp_path / "missing")
    plugin = built / "libnccl-profiler-slurmckpt.so"
    assert in_child(plugin, environment, "assert mask.value == 0 and context.value") == 0


def test_a_rank_is_held_but_not_the_child_that_it_forks(built: Path, tmp_path: Path) -> None:
    """A child that was forked is no rank: its parent's places in the region are not its own."""
    body = """
assert mask.value == 0x704
operation()
from slurmckpt.capture.gate import boundary
from slurmckpt.capture.gate.region import Region
region = Region.open(Path(os.environ["SLURM_CKPT_GATE"]))
closing = boundary.Closing(region, lambda pid: True, boundary.Patience(), lease=4.0)
closing.begin(0)
pid = os.fork()
began = time.monotonic()
operation()
if pid == 0:
    os._exit(time.monotonic() - began > 3)
assert time.monotonic() - began > 0.5
assert os.waitpid(pid, 0)[1] == 0
(member,) = region.snapshot().members
assert (member.pid, member.is_inside) == (os.getpid(), False)
"""
    plugin = built / "libnccl-profiler-slurmckpt.so"
    Region.create(tmp_path / "gate", -1, -1).close()
    assert in_child(plugin, gated(built, tmp_path / "gate"), body) == 0


def test_a_thread_is_inside_until_its_group_is_launched(built: Path, tmp_path: Path) -> None:
    """Not only until the first send of the group is called: NCCL stops the event of that one right away."""
    body = """
from slurmckpt.capture.gate.region import Region
region = Region.open(Path(os.environ["SLURM_CKPT_GATE"]))
group, send = ctypes.c_void_p(), ctypes.c_void_p()
name = ctypes.c_char_p(b"Send")
def inside():
    (member,) = region.snapshot().members
    return member.is_inside
assert plugin.start(context, ctypes.byref(group), (ctypes.c_uint64 * 64)(GROUP_API)) == 0
for number in (1, 2):
    event = (ctypes.c_uint64 * 64)(P2P_API, group.value, 0, ctypes.cast(name, ctypes.c_void_p).value, 1)
    assert plugin.start(context, ctypes.byref(send), event) == 0
    assert send.value != group.value and plugin.stop(send) == 0
    assert inside(), number
assert plugin.stop(group) == 0
assert not inside()
"""
    plugin = built / "libnccl-profiler-slurmckpt.so"
    Region.create(tmp_path / "gate", -1, -1).close()
    assert in_child(plugin, gated(built, tmp_path / "gate"), body) == 0
