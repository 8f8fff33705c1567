"""Which pids the processes of a pod get."""

from __future__ import annotations

import os

from tests.unit.pod.harness import FakeCoordinator, Pod, shell


def last_pid(pod: Pod) -> int:
    """The last that was given in it, as pod init says."""
    pod.wire.send("SYNC")
    return pod.expect("SYNCED").number("last_pid")


def test_the_leader_has_the_pid_that_was_chosen(coordinator: FakeCoordinator) -> None:
    """And what follows those after it; after the highest the kernel goes on at 300 (RESERVED_PIDS)."""
    shim = coordinator.started_shim(shell("echo $PPID; echo $$; sh -c 'echo $$'; sh -c 'echo $$'; :"))
    pod = coordinator.pod(shim)
    first = pod.pid_max - 3
    pod.lead([shim], pid=first)
    assert shim.finish() == (0, f"{first}\n{first + 1}\n{first + 2}\n300\n", "")


def test_pids_go_on_where_the_coordinator_says(coordinator: FakeCoordinator) -> None:
    """As after a restore: what was given to processes that are gone is not given again."""
    reader, writer = os.pipe()
    shim = coordinator.started_shim(shell("read x; sh -c 'echo $$'; sh -c 'echo $$'; :"), stdin=reader)
    os.close(reader)
    pod = coordinator.pod(shim)
    assert last_pid(pod) == 1
    pod.lead([shim])
    assert last_pid(pod) == 101
    pod.wire.send("LASTPID", pid=20000)
    assert last_pid(pod) == 20000
    os.write(writer, b"go\n")
    os.close(writer)
    assert shim.finish() == (0, "20001\n20002\n", "")


def test_after_a_kill_low_pids_are_free(coordinator: FakeCoordinator) -> None:
    pod, _ = coordinator.run(shell("exec sleep 1000"))
    pod.wire.send("KILL")
    pod.expect("KILLED")
    assert last_pid(pod) == 1


def test_pid_max_is_that_of_the_pod(coordinator: FakeCoordinator) -> None:
    shim = coordinator.started_shim(shell("cat /proc/sys/kernel/pid_max"))
    pod = coordinator.pod(shim)
    pod.lead([shim])
    assert shim.finish()[1] == f"{pod.pid_max}\n"


def test_a_pid_that_is_too_high(coordinator: FakeCoordinator) -> None:
    shim = coordinator.started_shim(shell("true"))
    pod = coordinator.pod(shim)
    pod.announce([shim], pid=pod.pid_max + 1)
    assert pod.expect("FAILED").values["reason"] == f"the leader has the pid 300 and not {pod.pid_max + 1}"
    pod.wire.expect_end()
