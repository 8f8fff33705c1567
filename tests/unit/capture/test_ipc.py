"""What processes share through the kernel, and what they are, that CRIU does not carry: refused, with a sentence."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurmckpt.capture import mqueues, undo
from slurmckpt.capture.preflight import scan
from tests.unit.capture.conftest import MakePod

pytestmark = pytest.mark.root

LIBC = "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"


def refusals(pod: Any) -> list[str]:
    return scan(pod.init, pod.leader, set()).refusals


def test_posix_message_queues(make_pod: MakePod) -> None:
    """Open or not: it is there as long as it has its name."""
    pod = make_pod(LIBC + "d = c.mq_open(b'/a queue', os.O_CREAT | os.O_RDWR, 0o600, None)\nos.close(d)\nready(d)")
    assert mqueues.names(pod.init) == ["/a queue"]
    (sentence,) = refusals(pod)
    assert "or another of its step has made the POSIX message queue /a queue, which cannot be captured" in sentence
    mqueues.clear(pod.init)
    assert mqueues.names(pod.init) == []
    assert refusals(pod) == []


def test_queues_of_a_pod_that_is_gone() -> None:
    assert mqueues.names(2**22 - 1) == []


@pytest.mark.parametrize(("flags", "count"), [(0, 0), (0o10000, 1)], ids=["without", "with"])
def test_semaphores_with_undo(make_pod: MakePod, monkeypatch: pytest.MonkeyPatch, flags: int, count: int) -> None:
    """Where nobody can find out what there is to be undone."""
    monkeypatch.setattr(undo, "is_carried", lambda: False)
    code = f"""
one = c.semget(0, 1, 0o1600)
c.semop(one, (ctypes.c_short * 3)(0, 1, {flags}), 1)
ready()
"""
    found = refusals(make_pod(LIBC + code))
    assert len(found) == count
    assert all("uses System V semaphores with SEM_UNDO, whose adjustments cannot be captured" in each for each in found)


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="Python 3.10 has it")
def test_an_eventfd_that_is_a_semaphore(make_pod: MakePod) -> None:
    pod = make_pod("plain, counting = os.eventfd(1), os.eventfd(1, os.EFD_SEMAPHORE)\nready()")
    (sentence,) = refusals(pod)
    assert "holds an eventfd with EFD_SEMAPHORE, which a restore would make an ordinary one" in sentence


def test_a_pipe_in_packet_mode(make_pod: MakePod) -> None:
    (sentence,) = refusals(make_pod("plain, packets = os.pipe(), os.pipe2(os.O_DIRECT)\nready()"))
    assert "holds a pipe in packet mode (O_DIRECT), which cannot be captured" in sentence


def test_another_personality(make_pod: MakePod) -> None:
    (sentence,) = refusals(make_pod(LIBC + "c.personality(0x40000)\nready()"))
    assert "has the personality 0x40000 (setarch), which a restore would not give back: start it without" in sentence


@pytest.mark.parametrize("number, name", [(10, "SIGUSR1"), (0, "no signal"), (35, "signal 35")])
def test_another_signal_at_the_end(make_pod: MakePod, number: int, name: str) -> None:
    code = "import platform, time\nclone = {'x86_64': 56, 'aarch64': 220}[platform.machine()]\n"
    code += f"if c.syscall(clone, {number}, 0, 0, 0, 0) == 0: time.sleep(1000)\nready()"
    (sentence,) = refusals(make_pod(LIBC + code))
    assert f"has {name} sent to its parent at its end and not SIGCHLD (clone), which a restore would not" in sentence


@pytest.mark.parametrize(
    "flag, what",
    [
        (0x400, "with open files of its own (unshare)"),
        (0x200, "with a working directory and umask of its own (unshare)"),
    ],
)
def test_a_thread_that_shares_less_than_others(make_pod: MakePod, flag: int, what: str) -> None:
    code = f"import threading\ndone, here = threading.Event(), threading.Event()\ndef run():\n    c.unshare({flag})\n"
    code += "    here.set()\n    done.wait()\n"
    code += "for _ in range(2): threading.Thread(target=done.wait, daemon=True).start()\n"
    assert refusals(make_pod(LIBC + code + "ready()")) == []
    (sentence,) = refusals(
        make_pod(LIBC + code + "threading.Thread(target=run, daemon=True).start(); here.wait(); ready()")
    )
    assert f"has a thread {what}, which cannot be captured" in sentence


def test_a_process_that_is_just_being_started(make_pod: MakePod, tmp_path: Path) -> None:
    """Its parent waits in the kernel until it executes its program, and cannot be stopped."""
    source = "#include <unistd.h>\nint main(void) { if (vfork() == 0) for (;;) pause(); return 0; }"
    command = ["gcc", "-w", "-x", "c", "-o", str(tmp_path / "starter"), "-"]
    subprocess.run(command, input=source, text=True, check=True)
    code = f"""
import subprocess
starter = subprocess.Popen([{str(tmp_path / "starter")!r}])
while not open(f"/proc/{{starter.pid}}/task/{{starter.pid}}/children").read():
    time.sleep(0.01)
ready()
"""
    pod = make_pod(code)
    found = scan(pod.init, pod.leader, set())
    assert found.refusals == []
    (sentence,) = found.passing
    assert "has been made by vfork and has not started its program yet" in sentence
    idle = make_pod("ready()")
    assert scan(idle.init, idle.leader, set()).passing == []
