"""Programs of the pod that are started by hand, or for a pod that cannot be: one line, and a defined end."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.unit.awaiting import wait_until
from tests.unit.pod.harness import (
    POD,
    FakeCoordinator,
    process_exists,
    shell,
)

pytestmark = pytest.mark.root


LEADER = POD / "leader"


def test_leader_by_hand() -> None:
    result = subprocess.run([LEADER, "0", "x"], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("slurmckpt: leader SETUP_FD STATUS_FD") and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            [],
            "usage: pod-init --control FD --shim-pid PID [--cgroup FILE]... [--shm DIR] [--bind SOURCE:TARGET]... "
            "[--net new|keep|FD] [--hostname NAME] [--anchor FD] [--doubt-signals]",
        ),
        (["--anchor", "2"], "--anchor 2 is not a descriptor above 2"),
        (["--control", "x"], "--control x is not a descriptor above 2"),
        (["--control", "2"], "--control 2 is not a descriptor above 2"),
        (["--control", "9", "--shim-pid", "0"], "--shim-pid 0 is not the pid of a task shim"),
        (["--control", "999", "--shim-pid", "5"], "--control 999 is not a SOCK_SEQPACKET socket"),
        (["--bind", "/a"], "--bind /a is not SOURCE:TARGET, two absolute paths"),
        (["--bind", "/a:b"], "--bind /a:b is not SOURCE:TARGET, two absolute paths"),
        (["--bind", "a:/b"], "--bind a:/b is not SOURCE:TARGET, two absolute paths"),
        (["--bind", "/a:/b:/c"], "--bind /a:/b:/c is not SOURCE:TARGET, two absolute paths"),
        (["--hostname", ""], "--hostname  is no name of 1 to 64 bytes"),
        (["--hostname", "x" * 65], f"--hostname {'x' * 65} is no name of 1 to 64 bytes"),
        (["--net", "host"], "--net host is not known, accepted are new, keep and a descriptor above 2"),
    ],
)
def test_pod_init_by_hand(arguments: list[str], text: str) -> None:
    result = subprocess.run([POD / "pod-init", *arguments], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (2, f"slurmckpt: pod-init: {text}\n")


def test_pod_that_cannot_be_built(coordinator: FakeCoordinator) -> None:
    shim = coordinator.started_shim(shell("echo ran"))
    pid = shim.process.pid
    for options, text in (
        (["--cgroup", "/no/such"], "cannot open /no/such: No such file or directory"),
        (["--shm", "/no/such"], "cannot bind /no/such over /dev/shm: No such file or directory"),
        (["--bind", "/no/such:/tmp"], "cannot bind /no/such over /tmp: No such file or directory"),
        (["--bind", "/tmp:/no/such"], "cannot bind /tmp over /no/such: No such file or directory"),
        (["--bind", "/tmp:/etc/passwd"], "cannot bind /tmp over /etc/passwd: Not a directory"),
    ):
        pod = coordinator.unready_pod(pid, *options)
        assert pod.expect("FAILED").values == {"reason": text}
        pod.wire.expect_end()
    shim.wire.send("DIRECT")
    assert shim.finish() == (0, "ran\n", "")


@pytest.mark.parametrize(
    ("options", "kind", "reason"),
    [
        (["--uts"], "uts", "the task has a uts namespace of its own"),
        # Anybody can make a mount namespace inside a user namespace: the leader that lies there is not ours.
        (["--user", "--mount"], "mnt", "the task has mounts that its user made"),
    ],
    ids=["foreign", "mounts that a user made"],
)
def test_shim_in_such_a_namespace_is_refused(
    coordinator: FakeCoordinator, options: list[str], kind: str, reason: str
) -> None:
    with subprocess.Popen(["unshare", *options, "sleep", "1000"]) as foreign:
        try:
            own = os.readlink(f"/proc/self/ns/{kind}")
            wait_until(lambda: os.readlink(f"/proc/{foreign.pid}/ns/{kind}") != own, "it is in its namespace")
            pod = coordinator.unready_pod(foreign.pid)
            assert pod.expect("FAILED").values == {"reason": reason}
        finally:
            foreign.kill()
    assert not process_exists(foreign.pid)
