"""Tasks between fork and their program: what looks at them then must see that they are only being started."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.coordinator.choice import Choice, Unsettled
from slurmckpt.coordinator.participant import look
from slurmckpt.coordinator.pod import TaskState
from tests.unit.awaiting import wait_until
from tests.unit.pod.harness import LEADER_PID, POD, FakeCoordinator, Pod, open_files, shell

pytestmark = pytest.mark.root


@pytest.fixture
def gate(scratch: Path) -> Path:
    """In the place of a cgroup's file: whoever joins it waits until somebody reads."""
    path = scratch / "gate"
    os.mkfifo(path)
    return path


def seen(pod: Pod, *pids: int) -> None:
    """As the coordinator looks at it, which goes by the pids that it was told of."""
    tasks = {index: TaskState(index, {}, pid=pid) for index, pid in enumerate(pids)}
    known = f"pipe:[{os.fstat(pod.status_write).st_ino}]"
    settings = SimpleNamespace(libexec=POD)
    one = SimpleNamespace(init_pid=pod.pid, leader_pid=LEADER_PID, tasks=tasks, status_key=known, settings=settings)
    look(cast(Any, SimpleNamespace(name="3", carrier=0)), cast(Any, one), Choice([]))


def begun(pod: Pod, pid: int) -> None:
    task = pod.outer_pid(pid)
    wait_until(lambda: os.path.basename(os.readlink(f"/proc/{task}/exe")) != "leader", "its program has begun")


def test_a_task_that_has_not_begun_its_program(coordinator: FakeCoordinator, gate: Path) -> None:
    """It is a copy of the leader as root had it, with a socket that leads to pod init: no reason to refuse its job."""
    shims = [coordinator.started_shim(shell("exec sleep 1000")) for _ in range(2)]
    pod = coordinator.pod(shims[0])
    pod.announce(shims, cgroups={1: gate})
    pod.go(shims)
    pids = [shim.pid_inside for shim in shims]
    begun(pod, pids[0])
    with pytest.raises(Unsettled, match=rf"^process {pids[1]} \(leader\) of step 3 has not begun its program yet$"):
        seen(pod, *pids)
    with open(gate, "rb"):
        begun(pod, pids[1])
    seen(pod, *pids)


def test_a_task_that_nobody_has_heard_of(coordinator: FakeCoordinator) -> None:
    pod, (shim,) = coordinator.run(shell("exec sleep 1000"))
    with pytest.raises(Unsettled, match=r"^not all tasks of step 3 have started yet$"):
        seen(pod, shim.pid_inside, 0)


def test_a_task_is_heard_of_when_the_leader_has_settled(coordinator: FakeCoordinator) -> None:
    """Whoever knows of the tasks may capture the leader with them: it must be the user's by then, and hold nothing."""
    shim = coordinator.started_shim(shell("exec sleep 1000"))
    pod = coordinator.pod(shim)
    pod.announce([shim])
    pod.go([shim])
    leader = pod.leader_pid()
    assert os.stat(f"/proc/{leader}/fd").st_uid == shim.uid
    assert sorted(open_files(leader)) == [0, 1, 2, 3]


def test_a_leader_that_dies_before_its_tasks_run(coordinator: FakeCoordinator, gate: Path) -> None:
    """A task has what the leader spoke through: pod init must not wait for the end of that."""
    shim = coordinator.started_shim(shell("exec sleep 1000"))
    pod = coordinator.pod(shim)
    pod.announce([shim], cgroups={0: gate})
    pod.go([shim])
    os.kill(pod.leader_pid(), signal.SIGKILL)
    code, _, err = shim.finish()
    assert (code, err) == (
        -signal.SIGKILL,
        "slurmckpt: the task is killed: the leader of the pod was killed by signal 9\n",
    )
