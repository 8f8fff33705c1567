"""enter --guard: a program that holds a pod still ends when nobody is in charge, and so does a pod it has spoilt."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.unit.awaiting import PATIENCE, wait_until
from tests.unit.pod.harness import POD, FakeCoordinator, Pod, children, process_exists, shell, status_field

pytestmark = pytest.mark.root

ENTER = POD / "enter"
TCP_REPAIR = 19  # linux/tcp.h
# All but SIGTRAP, SIGKILL and SIGSTOP: parasite_run() in CRIU's infect.c.
RT_SIGPROCMASK = {"x86_64": 14, "aarch64": 135}[platform.machine()]
PARASITE = ~(1 << 4 | 1 << 8 | 1 << 18)


class Guarded:
    """A guarded program. channel: the coordinator's end. heart: where the coordinator writes."""

    def __init__(self, pod: Pod, script: str, *options: str) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        beat, self.heart = os.pipe()
        command = [str(ENTER), "--pid", str(pod.pid), "--guard", f"{theirs.fileno()}:{beat}", *options, "--"]
        self.process = subprocess.Popen(
            [*command, "/bin/sh", "-c", script.replace("CHANNEL", str(theirs.fileno()))],
            pass_fds=(theirs.fileno(), beat),
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        os.close(beat)
        self.channel.settimeout(PATIENCE)
        assert self.channel.recv(10) == b"up"
        (self.program,) = children(self.process.pid)

    def die(self) -> None:
        """What the kernel does with a coordinator that is killed, but for the channel: see the tests."""
        os.close(self.heart)
        self.heart = -1

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.program, signal.SIGKILL)
        self.channel.close()
        if self.heart >= 0:
            self.die()


@pytest.fixture
def pod(coordinator: FakeCoordinator) -> Pod:
    return coordinator.run(shell("exec sleep 1000"))[0]


@pytest.fixture
def guarded(pod: Pod) -> Iterator[list[Guarded]]:
    made: list[Guarded] = []
    yield made
    for one in made:
        one.close()


# Waits for a question that never comes, as CRIU does at a notification.
WAITS = """exec python3 -c 'import socket; s = socket.socket(fileno=CHANNEL); s.send(b"up"); s.recv(10); exit(9)'"""
HANGS = """exec python3 -c 'import socket, time; s = socket.socket(fileno=CHANNEL); s.send(b"up"); time.sleep(1000)'"""


def test_a_program_whose_coordinator_is_well_is_left_alone(pod: Pod, guarded: list[Guarded]) -> None:
    one = Guarded(pod, WAITS)
    guarded.append(one)
    os.write(one.heart, b".")
    one.channel.send(b"go on")
    assert one.process.wait(PATIENCE) == 9


def test_the_coordinators_end_ends_the_connection(pod: Pod, guarded: list[Guarded]) -> None:
    """Also when another process still has the coordinator's end of it."""
    one = Guarded(pod, WAITS)
    guarded.append(one)
    one.die()
    assert one.process.wait(PATIENCE) == 9


def test_a_stopped_program_goes_on_to_undo(pod: Pod, guarded: list[Guarded]) -> None:
    one = Guarded(pod, WAITS)
    guarded.append(one)
    os.kill(one.program, signal.SIGSTOP)
    wait_until(lambda: status_field(one.program, "State").startswith("T"), "it is stopped")
    one.process.terminate()
    assert one.process.wait(PATIENCE) == 9


def test_a_program_that_does_not_heed_it_is_killed(pod: Pod, guarded: list[Guarded]) -> None:
    one = Guarded(pod, HANGS)
    guarded.append(one)
    one.process.terminate()
    assert one.process.wait(PATIENCE) == -signal.SIGKILL
    assert process_exists(pod.pid), "the pod has nothing that would have to be ended"


@pytest.mark.slow
def test_silence_ends_it(pod: Pod, guarded: list[Guarded]) -> None:
    """The coordinator lives but does nothing: stopped, or in a call that never returns."""
    began = time.monotonic()
    one = Guarded(pod, WAITS)
    guarded.append(one)
    assert one.process.wait(PATIENCE) == 9
    assert time.monotonic() - began >= 20


def pidfd_getfd(pid: int, number: int) -> int:
    """A dup of a descriptor of another process (pidfd_getfd(2), 438 on all machines)."""
    pidfd = os.pidfd_open(pid)
    try:
        found: int = ctypes.CDLL(None).syscall(438, pidfd, number, 0)
        assert found >= 0
        return found
    finally:
        os.close(pidfd)


INSANE = "slurmckpt: enter: CRIU was killed and a process of the pod cannot be brought back, so the pod is ended\n"


@pytest.mark.parametrize("repair", [0, 1])
def test_a_socket_in_repair_mode_ends_the_pod(
    coordinator: FakeCoordinator, guarded: list[Guarded], repair: int
) -> None:
    """CRIU sets it for the time of a dump. Whoever waits at such a socket gets EPERM as soon as it runs."""
    script = """python3 -c '
import os, socket, sys, time
a = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(a.getsockname()); s = a.accept()[0]
os.dup2(s.fileno(), 90); time.sleep(1000)'"""
    pod = coordinator.run(shell("exec " + script))[0]
    leader = children(pod.pid)[0]

    def holder() -> int:
        return next((pid for pid in children(leader) if os.path.exists(f"/proc/{pid}/fd/90")), 0)

    wait_until(lambda: bool(holder()), "the connection stands")
    with socket.socket(fileno=pidfd_getfd(holder(), 90)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, repair)
        one = Guarded(pod, HANGS)
        guarded.append(one)
        os.kill(one.program, signal.SIGKILL)
        assert one.process.communicate(timeout=PATIENCE)[1] == (INSANE if repair else "")
        if repair:
            wait_until(lambda: status_field(pod.pid, "State").startswith("Z"), "the pod ends")
        else:
            assert not status_field(pod.pid, "State").startswith("Z")


@pytest.mark.slow
def test_silence_ends_a_pod_that_is_being_restored(pod: Pod, guarded: list[Guarded]) -> None:
    """Nobody would stand in for its processes; but not when the coordinator is gone: see pod_coordinator.c."""
    one = Guarded(pod, WAITS, "--restores")
    guarded.append(one)
    one.die()
    assert one.process.wait(PATIENCE) == 9
    assert not status_field(pod.pid, "State").startswith("Z")
    guarded.append(Guarded(pod, WAITS, "--restores"))
    assert guarded[1].process.wait(PATIENCE) == -signal.SIGKILL
    wait_until(lambda: status_field(pod.pid, "State").startswith("Z"), "the pod ends")


def test_a_pod_with_a_process_that_cannot_be_saved_is_ended(
    coordinator: FakeCoordinator, guarded: list[Guarded]
) -> None:
    """One in which CRIU's code still runs: here only its signal mask."""
    script = f"""python3 -c '
import ctypes, time
mask = ctypes.c_uint64({PARASITE}); ctypes.CDLL(None).syscall({RT_SIGPROCMASK}, 2, ctypes.byref(mask), None, 8)
time.sleep(1000)'"""
    pod = coordinator.run(shell("exec " + script))[0]
    leader = children(pod.pid)[0]

    def blocked() -> bool:
        return any(status_field(pid, "SigBlk") == f"{PARASITE & (1 << 64) - 1:016x}" for pid in children(leader))

    wait_until(blocked, "the signals are blocked")
    one = Guarded(pod, HANGS)
    guarded.append(one)
    os.kill(one.program, signal.SIGKILL)
    assert one.process.communicate(timeout=PATIENCE)[1] == INSANE
    wait_until(lambda: status_field(pod.pid, "State").startswith("Z"), "the pod ends")
