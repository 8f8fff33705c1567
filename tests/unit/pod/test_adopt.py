"""After a restore: pod-init takes over a leader and tasks that CRIU has made. A script stands in for them."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
from collections.abc import Callable

import pytest

from tests.unit.awaiting import wait_until
from tests.unit.pod.harness import POD, FakeCoordinator, Pod, children, inner_pid, shell

pytestmark = pytest.mark.root

PYTHON = "/usr/bin/python3"
# Becomes an orphan, as what CRIU restores does when CRIU ends; starts two tasks, tells their pids, then waits and
# reports as the leader does.
RESTORED = """
import os, struct, sys
status, told = int(sys.argv[1]), int(sys.argv[2])
if os.fork():
    os._exit(0)
os.setsid()
tasks = {}
for index in (0, 4):
    pid = os.fork()
    if pid == 0:
        os.execv('/bin/sh', ['sh', '-c', 'trap "exit 11" USR1; echo up; while :; do sleep 0.01; done'])
    tasks[pid] = index
os.write(told, (' '.join(map(str, (os.getpid(), *tasks))) + '\\n').encode())
os.close(told)
while tasks:
    pid, result = os.wait()
    index = tasks.pop(pid)
    os.write(status, struct.pack('=iiii', 2, index, pid, result))
"""


def record(kind: int, index: int, pid: int, wait_status: int) -> bytes:
    """A record of the status pipe: four int32 in native order."""
    return struct.pack("=iiii", kind, index, pid, wait_status)


def restore(pod: Pod) -> tuple[int, list[int]]:
    """The pids, inside the pod, of a leader and its two tasks (index 0 and 4), all of them running."""
    told, tell = os.pipe()
    out, put = os.pipe()
    command = [
        str(POD / "enter"),
        "--pid",
        str(pod.pid),
        "--",
        PYTHON,
        "-ISc",
        RESTORED,
        str(pod.status_write),
        str(tell),
    ]
    subprocess.run(command, pass_fds=(pod.status_write, tell), stdout=put, check=True)
    os.close(tell)
    os.close(put)
    with os.fdopen(told) as lines:
        leader, *tasks = (int(word) for word in lines.readline().split())
    with os.fdopen(out) as lines:
        assert [lines.readline(), lines.readline()] == ["up\n", "up\n"], "both tasks have set their traps"
    return leader, tasks


@pytest.fixture(autouse=True)
def needs_python() -> None:
    if not os.path.exists(PYTHON):
        pytest.skip(f"needs {PYTHON}")


def test_tasks_of_a_restore(coordinator: FakeCoordinator) -> None:
    shims = [coordinator.started_shim(shell("echo must not run")) for _ in range(2)]
    pod = coordinator.pod(shims[0])
    leader, tasks = restore(pod)
    assert leader < 99, "in a pod without LEADER the low pids are not taken"
    pod.wire.send("ADOPT", leader=leader)
    for index, pid, shim in zip((0, 4), tasks, shims, strict=True):
        shim.wire.send("RUN")
        pod.wire.send("SHIM", index=index, pid=pid, fds=(shim.wire.sock.fileno(),))
        shim.wire.close()
    shims[1].signal(signal.SIGUSR1)
    pod.wire.send("GO")
    assert shims[1].finish() == (11, "", "")
    assert pod.expect("EXITED").values == {"index": "4", "status": str(11 << 8)}
    assert [note.values for note in pod.notes] == [{"index": "4", "n": "10"}]
    shims[0].process.kill()
    assert pod.expect("EXITED").values == {"index": "0", "status": "9"}
    pod.expect("DONE")
    pod.wait_gone()


def test_restore_in_place_keeps_the_shims(coordinator: FakeCoordinator) -> None:
    pod, (shim,) = coordinator.run(shell("exec sleep 1000"))
    pod.wire.send("KILL")
    pod.expect("KILLED")
    shim.signal(signal.SIGUSR1)
    leader, tasks = restore(pod)
    pod.wire.send("ADOPT", leader=leader)
    pod.wire.send("SHIM", index=0, pid=tasks[0])
    pod.wire.send("GO")
    assert shim.finish()[0] == 11, "the signal that came in between has waited for the restored task"
    pod.expect("EXITED")
    pod.expect("DONE")


def test_shim_that_died_during_the_restore(coordinator: FakeCoordinator) -> None:
    shims = [coordinator.started_shim(shell("true")) for _ in range(2)]
    pod = coordinator.pod(shims[0])
    leader, tasks = restore(pod)
    pod.wire.send("ADOPT", leader=leader)
    for index, pid, shim in zip((0, 4), tasks, shims, strict=True):
        pod.wire.send("SHIM", index=index, pid=pid, fds=(shim.wire.sock.fileno(),))
        shim.wire.send("RUN")
        shim.wire.close()
    shims[0].process.kill()
    shims[0].process.wait()
    pod.wire.send("GO")
    assert pod.expect("EXITED").values == {"index": "0", "status": "9"}
    assert shims[1].process.poll() is None


def test_leader_that_ended_before_it_was_adopted(coordinator: FakeCoordinator) -> None:
    shim = coordinator.started_shim(shell("true"))
    pod = coordinator.pod(shim)
    leader, tasks = restore(pod)
    os.kill(pod.outer_pid(leader), signal.SIGKILL)
    wait_until(lambda: len(children(pod.pid)) == 2, "pod init has reaped it and got its children")
    pod.wire.send("ADOPT", leader=leader)
    pod.wire.send("SHIM", index=0, pid=tasks[0], fds=(shim.wire.sock.fileno(),))
    shim.wire.send("RUN")
    shim.wire.close()
    pod.wire.send("GO")
    assert shim.finish() == (-9, "", "slurmckpt: the task is killed: the leader failed: it ended before GO\n")
    pod.expect("DONE")


def test_failed_restore_then_cold_start(coordinator: FakeCoordinator) -> None:
    """What CRIU left half done is killed; the same shims then get a fresh start."""
    shim = coordinator.started_shim(shell("cut -d' ' -f1 /proc/$$/stat"))
    pod = coordinator.pod(shim)
    restore(pod)
    pod.wire.send("KILL")
    pod.expect("KILLED")
    pod.lead([shim])
    assert shim.finish() == (0, "101\n", "")


@pytest.mark.parametrize("reach", ["self", "foreign"])
def test_forged_status_records_reach_no_process_of_ours(coordinator: FakeCoordinator, reach: str) -> None:
    """The user can write to the status pipe, through the leader's /proc/PID/fd. Root must not follow it."""
    shims = [coordinator.started_shim(shell("exec sleep 1000")) for _ in range(2)]
    pod = coordinator.pod(shims[0])
    pod.announce(shims)
    # criu, say: root's, in the pod, and not a child of the leader
    command = [str(POD / "enter"), "--pid", str(pod.pid), "--", "/bin/sleep", "1000"]
    with subprocess.Popen(command) as guest:
        try:
            wait_until(lambda: len(children(guest.pid)) == 1, "the guest is in the pod")
            inside = 1 if reach == "self" else inner_pid(children(guest.pid)[0])
            os.write(pod.status_write, record(1, 0, inside, 0) + record(1, -5, 3, 0) + record(7, 0, 3, 0))
            for shim in shims:
                shim.wire.send("RUN")
            pod.wire.send("GO")
            if reach == "foreign":
                assert pod.expect("STARTED").values == {"index": "0", "pid": str(inside)}
            shims[0].signal(signal.SIGUSR1)
            shims[0].process.kill()
            shims[0].wire.close()
            pod.wire.send("SYNC")
            pod.expect("SYNCED")
            assert guest.poll() is None
            if reach == "foreign":
                assert not [note for note in pod.notes if note.verb == "SIGNALLED"]
        finally:
            guest.terminate()


@pytest.mark.parametrize(
    "damage",
    [
        lambda status: os.write(status, b"\x01"),
        lambda status: os.write(status, os.urandom(16 * 1000)),
        lambda status: os.write(status, record(2, 0, 0, -1) + record(2, 0, 0, 0x7F) + record(2, 2**31 - 1, 1, 0)),
    ],
    ids=["one byte", "noise", "impossible"],
)
def test_damaged_status_pipe_still_ends(coordinator: FakeCoordinator, damage: Callable[[int], object]) -> None:
    pod, (shim,) = coordinator.run(shell("exec sleep 1000"))
    damage(pod.status_write)
    shim.signal(signal.SIGTERM)
    # with its record out of step the end is only seen by the end of the leader
    assert shim.finish()[0] in (-signal.SIGTERM, -signal.SIGKILL)
    pod.expect("DONE")
    pod.wait_gone()
