"""restart.so, called as CRIU calls it: for a process that is stopped by its tracer in the middle of a call."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.awaiting import wait_until
from tests.unit.pod.harness import POD

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="there it does nothing")

# uapi/linux/ptrace.h
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
EINTR = 4
CHILD = """
import ctypes, os, signal, struct
c = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGUSR1, lambda *_: None)
poll, room = c.epoll_create1(0), ctypes.create_string_buffer(16)
nothing = ctypes.create_string_buffer(128)
def limit(seconds):
    return ctypes.create_string_buffer(struct.pack("qq", seconds, 0))
os.write(1, b"!")
result = CALL
print(result, ctypes.get_errno() if result < 0 else 0)
"""


class Plugin(ctypes.Structure):
    """CRIU's cr_plugin_desc_t (criu-plugin.h, version 0.2)."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("init", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)),
        ("exit", ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int)),
        ("version", ctypes.c_uint),
        ("max_hooks", ctypes.c_uint),
        ("hooks", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int) * 12),
    )


@pytest.fixture(scope="module")
def plugin() -> Plugin:
    return Plugin.in_dll(ctypes.CDLL(str(POD / "restart.so")), "CR_PLUGIN_DESC")


libc = ctypes.CDLL(None, use_errno=True)


def ptrace(request: int, pid: int) -> None:
    assert libc.ptrace(request, pid, None, None) == 0, os.strerror(ctypes.get_errno())


def interrupted(children: list[subprocess.Popen[str]], call: str, plugin: Plugin | None, number: int = 0) -> str:
    """What a call gives that is interrupted by a tracer. number: of a signal that comes as well."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.replace("CALL", call)], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    children.append(child)
    assert child.stdout is not None and child.stdout.read(1) == "!"
    call_file = Path(f"/proc/{child.pid}/syscall")
    wait_until(lambda: call_file.read_text().split()[0] in ("232", "128"), "the call")
    ptrace(PTRACE_SEIZE, child.pid)
    ptrace(PTRACE_INTERRUPT, child.pid)
    os.waitpid(child.pid, os.WUNTRACED)
    if number:
        os.kill(child.pid, number)
    if plugin is not None:
        assert plugin.hooks[11](child.pid) == 0
    ptrace(PTRACE_DETACH, child.pid)
    return child.communicate(timeout=60)[0].strip()


EPOLL = "c.epoll_wait(poll, room, 1, {})"


def test_it_is_a_plugin_of_crius(plugin: Plugin) -> None:
    assert (plugin.name, plugin.version, plugin.max_hooks) == (b"slurmckpt-restart", 0x200, 12)
    assert plugin.init(0) == 0
    assert [bool(hook) for hook in plugin.hooks] == [False] * 9 + [True, False, True]


def test_a_call_starts_again(plugin: Plugin, children: list[subprocess.Popen[str]]) -> None:
    assert interrupted(children, EPOLL.format(20_000), None) == f"-1 {EINTR}"
    assert interrupted(children, EPOLL.format(3000), plugin) == "0 0"


def test_a_long_limit_is_the_programs_to_reckon(plugin: Plugin, children: list[subprocess.Popen[str]]) -> None:
    assert interrupted(children, EPOLL.format(3_600_000), plugin) == f"-1 {EINTR}"
    assert interrupted(children, "c.sigtimedwait(nothing, None, limit(3600))", plugin) == f"-1 {EINTR}"


def test_a_signal_interrupts(plugin: Plugin, children: list[subprocess.Popen[str]]) -> None:
    assert interrupted(children, EPOLL.format(20_000), plugin, signal.SIGUSR1) == f"-1 {EINTR}"


def test_a_limit_in_memory(plugin: Plugin, children: list[subprocess.Popen[str]]) -> None:
    began = time.monotonic()
    assert interrupted(children, "c.sigtimedwait(nothing, None, limit(3))", plugin) == "-1 11"  # EAGAIN: all of it
    assert time.monotonic() - began >= 3


def stopped(pid: int, plugin: Plugin) -> None:
    """A freeze of a process, and its end."""
    ptrace(PTRACE_SEIZE, pid)
    ptrace(PTRACE_INTERRUPT, pid)
    os.waitpid(pid, os.WUNTRACED)
    assert plugin.hooks[11](pid) == 0
    ptrace(PTRACE_DETACH, pid)


def sleeps(pid: int) -> tuple[int, int] | None:
    """Where its clock_nanosleep takes its time from and where it puts the rest; None when it is in another call."""
    words = Path(f"/proc/{pid}/syscall").read_text().split()
    return (int(words[3], 16), int(words[4], 16)) if words[0] == "230" else None


def seconds_at(pid: int, address: int) -> float:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        whole, rest = struct.unpack("qq", memory.read(16))
    return float(whole + rest / 1e9)


def test_a_sleep_goes_on_with_what_is_left(plugin: Plugin, children: list[subprocess.Popen[str]]) -> None:
    """Otherwise one that is longer than the interval between checkpoints would never end."""
    command = [sys.executable, "-c", "import ctypes; ctypes.CDLL(None).usleep(20_000_000)"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    children.append(child)
    wait_until(lambda: sleeps(child.pid) is not None, "the sleep")
    first = sleeps(child.pid)
    assert first is not None and first[1] == 0
    stopped(child.pid, plugin)
    wait_until(lambda: (sleeps(child.pid) or first) != first, "the second sleep")
    second = sleeps(child.pid)
    assert second is not None and second[0] == second[1]
    assert seconds_at(child.pid, second[0]) == 20
    began = time.monotonic()
    time.sleep(0.3)
    slept = time.monotonic() - began
    stopped(child.pid, plugin)
    wait_until(lambda: sleeps(child.pid) == second, "the third sleep")
    assert 0 < seconds_at(child.pid, second[0]) <= 20 - slept
