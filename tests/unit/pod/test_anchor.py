"""The anchor: where the pod stands for Slurm, and which signals have come to whom already."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.awaiting import PATIENCE, wait_until
from tests.unit.pod.harness import POD, FakeCoordinator, Pod, Shim, Wire, children, process_exists, shell, status_field

pytestmark = pytest.mark.root

PYTHON = "/usr/bin/python3"
# The task and a child of its process group each write what they get, one number a line, until 64 comes.
TELLER = """
import os, signal, sys
wanted = {10, 12, 64}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
name = sys.argv[1] + ('/task' if os.fork() else '/child')
with open(name, 'w', buffering=1) as notes:
    while (got := signal.sigwait(wanted)) != 64:
        print(int(got), file=notes)
"""


class Anchor:
    """An anchor as the plugin starts it. wire: the coordinator's end."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.wire = Wire(ours)
        self.process = subprocess.Popen([POD / "anchor", str(theirs.fileno())], pass_fds=(theirs.fileno(),))
        theirs.close()

    def close(self) -> None:
        self.wire.close()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()


class AnchoredPod(Pod):
    """A pod that an anchor makes."""

    def __init__(self, anchor: Anchor, shim_pid: int, *options: str, network: int | None = None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.wire = Wire(ours)
        self.pid, self.pidfd, self.status_write = 0, -1, -1
        self.notes = []
        self.process = anchor.process
        words = ["--control", "11", "--shim-pid", str(shim_pid), *options]
        words += [] if network is None else ["--net", "12"]
        binary = os.open(POD / "pod-init", os.O_RDONLY)
        given = [binary, theirs.fileno(), *([] if network is None else [network])]
        anchor.wire.send("POD", *(("arg", word) for word in words), fds=given)
        os.close(binary)
        theirs.close()

    def ready(self) -> None:
        message = self.wire.expect("READY")
        self.pid = message.number("pid")
        self.pidfd = os.pidfd_open(self.pid)
        (self.status_write,) = message.fds

    def close(self) -> None:
        self.wire.close()
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            assert select.select([self.pidfd], [], [], PATIENCE)[0]
            os.close(self.pidfd)
            os.close(self.status_write)


@pytest.fixture
def anchor(coordinator: FakeCoordinator) -> Anchor:
    made = Anchor()
    # The first to come is the last to go: after the pods below it.
    coordinator._open.append(cast(Any, made))
    return made


def running(coordinator: FakeCoordinator, anchor: Anchor, scratch: Path, *options: str) -> tuple[AnchoredPod, Shim]:
    """A task and its child that tell what they get."""
    shim = coordinator.started_shim([PYTHON, "-c", TELLER, str(scratch)])
    pod = AnchoredPod(anchor, shim.process.pid, *options)
    coordinator._open.append(pod)
    pod.ready()
    pod.lead([shim])
    wait_until(lambda: (scratch / "child").exists() and (scratch / "task").exists(), "both wait for signals")
    return pod, shim


def told(scratch: Path, name: str) -> list[int]:
    return [int(line) for line in (scratch / name).read_text().split()]


def wait_told(scratch: Path, task: list[int], child: list[int]) -> None:
    wait_until(
        lambda: (told(scratch, "task"), told(scratch, "child")) == (task, child),
        f"{task} and {child}",
    )


@pytest.fixture(autouse=True)
def needs_python() -> None:
    if not Path(PYTHON).exists():
        pytest.skip(f"needs {PYTHON}")


def test_the_pod_is_its_child(coordinator: FakeCoordinator, anchor: Anchor, scratch: Path) -> None:
    pod, _ = running(coordinator, anchor, scratch)
    wait_until(lambda: status_field(pod.pid, "PPid") == str(anchor.process.pid), "the first stage is gone")
    assert os.getpgid(anchor.process.pid) == os.getpgid(0)


def test_it_ends_with_its_connection(anchor: Anchor) -> None:
    anchor.wire.close()
    assert anchor.process.wait(PATIENCE) == 0


def test_it_outlives_the_coordinator_as_long_as_there_is_a_pod(
    coordinator: FakeCoordinator, anchor: Anchor, scratch: Path
) -> None:
    pod, shim = running(coordinator, anchor, scratch)
    anchor.wire.close()
    shim.signal(10)
    wait_told(scratch, [10], [])
    assert anchor.process.poll() is None
    pod.wire.send("KILL")
    pod.expect("KILLED")
    pod.wire.close()
    assert anchor.process.wait(PATIENCE) == 0
    wait_until(lambda: not process_exists(pod.pid), "pod init is reaped")


def test_the_last_shim_ends_after_everything_else(coordinator: FakeCoordinator, anchor: Anchor, scratch: Path) -> None:
    """Slurm sleeps for a second when it finds a process after the last task. The coordinator is not needed for it."""
    script = f"sleep 1000 & while [ ! -e {scratch}/go ]; do sleep 0.01; done; exit 3"
    first, last = (coordinator.started_shim(command) for command in (shell("exit 4"), shell(script)))
    pod = AnchoredPod(anchor, first.process.pid)
    coordinator._open.append(pod)
    pod.ready()
    pod.lead([first, last])
    assert first.finish()[0] == 4
    assert process_exists(pod.pid)
    (scratch / "go").touch()
    assert last.finish()[0] == 3
    assert not process_exists(pod.pid)
    assert anchor.process.wait(PATIENCE) == 0
    pod.expect("DONE")


def test_a_shim_does_not_wait_for_ever_for_its_pod(coordinator: FakeCoordinator) -> None:
    """Somebody stops pod init."""
    shim = coordinator.started_shim(shell("exit 0"))
    shim.wire.send("RUN")
    shim.wire.send("EXIT", status=3 << 8, last="yes")
    assert shim.finish()[0] == 3


def test_another_pod_after_the_first(coordinator: FakeCoordinator, anchor: Anchor, scratch: Path) -> None:
    """As for a restore that failed and is followed by a fresh start. Its signals go to the new one."""
    shim = coordinator.started_shim(shell("exec sleep 1000"))
    first = AnchoredPod(anchor, shim.process.pid)
    first.ready()
    first.close()
    _, other = running(coordinator, anchor, scratch)
    os.kill(anchor.process.pid, 12)
    wait_told(scratch, [], [12])
    assert other.process.poll() is None


def test_a_pod_that_cannot_be_built(coordinator: FakeCoordinator, anchor: Anchor) -> None:
    pod = AnchoredPod(anchor, 2**30)
    assert pod.wire.expect("FAILED").values["reason"]
    pod.wire.expect_end()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    anchor.wire.send("POD", ("cgroup", "/no/such/file"), fds=[theirs.fileno(), theirs.fileno()])
    theirs.close()
    control = Wire(ours)
    assert control.expect("FAILED").values["reason"] == "cannot open /no/such/file: No such file or directory"
    control.expect_end()
    control.close()
    assert anchor.process.poll() is None


@pytest.mark.parametrize("data", [b"POD\0", b"NONSENSE\0", b"POD"])
def test_what_is_no_request_ends_it(anchor: Anchor, data: bytes) -> None:
    """The coordinator talks nonsense: as good as gone."""
    anchor.wire.send_bytes(data)
    assert anchor.process.wait(PATIENCE) == 0


def test_a_signal_to_the_task_alone(coordinator: FakeCoordinator, anchor: Anchor, scratch: Path) -> None:
    _, shim = running(coordinator, anchor, scratch)
    shim.signal(10)
    wait_told(scratch, [10], [])


def test_a_signal_to_the_process_group(coordinator: FakeCoordinator, anchor: Anchor, scratch: Path) -> None:
    """The shim and the anchor get it: the task by its shim, the rest of its group by the anchor."""
    _, shim = running(coordinator, anchor, scratch)
    os.kill(anchor.process.pid, 10)
    shim.signal(10)
    wait_told(scratch, [10], [10])
    shim.signal(12)
    os.kill(anchor.process.pid, 12)
    wait_told(scratch, [10, 12], [10, 12])


def outer(pod: Pod) -> list[int]:
    """The task and its child, as seen here."""
    (task,) = children(pod.leader_pid())
    return [task, *children(task)]


@pytest.mark.parametrize("options", [(), ("--doubt-signals",)], ids=["children first", "shim first"])
def test_a_signal_to_every_process_of_the_step(
    coordinator: FakeCoordinator, anchor: Anchor, scratch: Path, options: tuple[str, ...]
) -> None:
    """In the order of proctrack/linuxproc; and in that of proctrack/cgroup where it signals all."""
    pod, shim = running(coordinator, anchor, scratch, *options)
    inside = [*outer(pod), pod.leader_pid(), pod.pid]
    order = [*inside, anchor.process.pid, shim.process.pid]
    sent: list[int] = []
    for number in (10, 12, 10):
        for pid in reversed(order) if options else order:
            os.kill(pid, number)
        sent.append(number)
        assert pod.expect("SIGNALLED").values == {"index": "0", "n": str(number)}
        wait_told(scratch, sent, sent)
    # Longer than a shim's signal is held.
    time.sleep(0.5)
    wait_told(scratch, sent, sent)


def test_a_signal_to_the_task_alone_where_all_may_have_it(
    coordinator: FakeCoordinator, anchor: Anchor, scratch: Path
) -> None:
    """It waits for a moment, and then it is known that nobody else had it."""
    _, shim = running(coordinator, anchor, scratch, "--doubt-signals")
    began = time.monotonic()
    shim.signal(10)
    wait_told(scratch, [10], [])
    assert 0.15 < time.monotonic() - began < PATIENCE
    os.kill(anchor.process.pid, 12)
    shim.signal(12)
    wait_told(scratch, [10, 12], [12])


def test_what_a_process_of_the_pod_sends_to_pod_init_says_nothing(
    coordinator: FakeCoordinator, anchor: Anchor, scratch: Path
) -> None:
    """A root program in the job may signal pid 1; that is not Slurm."""
    pod, shim = running(coordinator, anchor, scratch)
    command = ["nsenter", f"--pid=/proc/{pod.pid}/ns/pid", "--", "/bin/sh", "-c", "kill -USR1 1; kill -USR2 1"]
    assert subprocess.run(command, check=False).returncode == 0
    shim.signal(10)
    wait_told(scratch, [10], [])
