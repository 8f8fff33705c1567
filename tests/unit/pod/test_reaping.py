"""Pod init notices every end, whatever it is doing when it comes."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

import pytest

from tests.unit.awaiting import wait_until
from tests.unit.pod.harness import POD, FakeCoordinator, shell

# linux/ptrace.h; struct user_regs_struct of x86_64: the registers by their places, and the calls that poll(2) is.
_ATTACH, _DETACH, _SYSCALL, _GETREGS, _OPTIONS, _GOOD = 16, 17, 24, 12, 0x4200, 1
_RAX, _ORIG_RAX, _POLL = 10, 15, (7, 219)


class Tracer:
    """Stops a process at the moment at which its poll(2) has found something, before it looks what."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._call(_ATTACH)
        os.waitpid(pid, 0)
        self._call(_OPTIONS, _GOOD)

    def _call(self, request: int, data: int = 0) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(ctypes.c_long(request), ctypes.c_long(self.pid), None, ctypes.c_void_p(data)):
            raise OSError(ctypes.get_errno(), "ptrace")

    def until_poll_returns(self) -> None:
        registers = (ctypes.c_ulonglong * 27)()
        while True:
            self._call(_SYSCALL)
            os.waitpid(self.pid, 0)
            self._call(_GETREGS, ctypes.addressof(registers))
            if registers[_ORIG_RAX] in _POLL and 0 < registers[_RAX] < 100:
                return

    def detach(self) -> None:
        self._call(_DETACH)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="knows the registers of x86_64")
def test_an_end_between_poll_and_the_look_at_what_it_has_found(coordinator: FakeCoordinator) -> None:
    pod = coordinator.pod(coordinator.started_shim(shell("true")))
    pod.wire.send(
        "LEADER", ("path", POD / "leader"), ("ntasks", 1), ("pid", 100), ("uid", 1), ("gid", 1), ("groups", "")
    )
    pod.wire.send("SYNC")
    pod.expect("SYNCED")
    leader = pod.leader_pid()
    tracer = Tracer(pod.pid)
    try:
        pod.wire.send("SYNC")
        tracer.until_poll_returns()
        os.kill(leader, signal.SIGKILL)
        stat = Path(f"/proc/{leader}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", "the leader's end")
    finally:
        tracer.detach()
    assert pod.expect("FAILED").values["reason"] == "the leader of the pod was killed by signal 9"
    pod.wait_gone()
