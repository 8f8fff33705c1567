"""HOLD and PASS: ends and signals that wait until the coordinator has decided what becomes of the task."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.unit.awaiting import wait_until
from tests.unit.pod.harness import FakeCoordinator, Pod, Shim, build_variant, children, shell, status_field
from tests.unit.pod.test_adopt import restore
from tests.unit.pod.test_signals import COUNTER, PYTHON

pytestmark = pytest.mark.root

SLEEP = shell("exec sleep 1000")


def mask(*numbers: int) -> str:
    return f"{sum(1 << (number - 1) for number in numbers):x}"


def hold(pod: Pod, exits: str = "no", *numbers: int, patience: int | None = 600_000) -> None:
    """patience: in ms, so long that nothing passes by itself before the test gives up; None: pod init's own."""
    if patience is None:
        pod.wire.send("HOLD", exits=exits, signals=mask(*numbers))
    else:
        pod.wire.send("HOLD", exits=exits, signals=mask(*numbers), patience=patience)


def settle(pod: Pod) -> None:
    """Everything sent before this has been taken."""
    pod.wire.send("SYNC")
    pod.expect("SYNCED")


def values(pod: Pod, verb: str) -> dict[str, str]:
    return dict(pod.expect(verb).values)


def held_task(coordinator: FakeCoordinator, command: list[str], status: int) -> tuple[Pod, Shim]:
    """A task whose end is held."""
    shim = coordinator.started_shim(command)
    pod = coordinator.pod(shim)
    hold(pod, "yes")
    pod.lead([shim])
    assert values(pod, "EXITED") == {"index": "0", "status": str(status), "held": "yes"}
    return pod, shim


def counting_task(coordinator: FakeCoordinator, scratch: Path, *numbers: int) -> tuple[Pod, Shim]:
    """A task that prints which of these signals it got, once it gets signal 64."""
    ready = scratch / "ready"
    wanted = ",".join(str(int(number)) for number in (*numbers, 64))
    pod, (shim,) = coordinator.run([PYTHON, "-c", COUNTER, str(ready), wanted])
    wait_until(ready.exists, "the task waits for signals")
    return pod, shim


def still_stands_in(shim: Shim) -> bool:
    return shim.process.poll() is None


@pytest.fixture
def impatient(scratch: Path) -> Path:
    """A pod init that waits for 0.3 s instead of 30."""
    return build_variant(scratch, "pod-init", "HOLD_PATIENCE_MS=300")


# Exits


@pytest.mark.parametrize(("script", "status", "code"), [("exit 3", 3 << 8, 3), ("ulimit -c 0; kill -SEGV $$", 11, -11)])
def test_a_held_end_reaches_the_shim_when_it_is_passed(
    coordinator: FakeCoordinator, script: str, status: int, code: int
) -> None:
    pod, shim = held_task(coordinator, shell(script), status)
    wait_until(lambda: not children(pod.pid), "the leader has ended, too")
    settle(pod)
    assert still_stands_in(shim)
    assert pod.notes == []
    pod.wire.send("PASS", index=0)
    assert shim.finish() == (code, "", "")
    pod.expect("DONE")
    pod.wait_gone()
    assert pod.notes == []


def test_a_good_end_is_never_held(coordinator: FakeCoordinator) -> None:
    shim = coordinator.started_shim(shell("exit 0"))
    pod = coordinator.pod(shim)
    hold(pod, "yes")
    pod.lead([shim])
    assert shim.finish()[0] == 0
    assert values(pod, "EXITED") == {"index": "0", "status": "0"}
    pod.expect("DONE")


def test_nothing_is_held_unless_asked_for(coordinator: FakeCoordinator) -> None:
    pod, (shim,) = coordinator.run(SLEEP)
    shim.signal(signal.SIGUSR1)
    assert shim.finish()[0] == -signal.SIGUSR1
    assert values(pod, "EXITED") == {"index": "0", "status": "10"}


def test_the_others_run_on_while_one_is_held(coordinator: FakeCoordinator) -> None:
    shims = [coordinator.started_shim(shell("exit 5")), coordinator.started_shim(SLEEP)]
    pod = coordinator.pod(shims[0])
    pod.announce(shims)
    hold(pod, "yes")
    pod.go(shims)
    assert values(pod, "EXITED") == {"index": "0", "status": str(5 << 8), "held": "yes"}
    assert still_stands_in(shims[1])
    shims[1].signal(signal.SIGTERM)
    assert values(pod, "EXITED") == {"index": "1", "status": "15", "held": "yes"}
    for index in (1, 0):
        pod.wire.send("PASS", index=index)
        assert shims[index].finish()[0] == (5, -signal.SIGTERM)[index]
    pod.expect("DONE")


def test_kill_undoes_a_held_end(coordinator: FakeCoordinator) -> None:
    pod, shim = held_task(coordinator, shell("exit 3"), 3 << 8)
    pod.wire.send("KILL")
    pod.expect("KILLED")
    leader, tasks = restore(pod)
    pod.wire.send("ADOPT", leader=leader)
    pod.wire.send("SHIM", index=0, pid=tasks[0])
    pod.wire.send("GO")
    # what was decided about the old end does nothing to the restored task
    pod.wire.send("PASS", index=0)
    settle(pod)
    assert still_stands_in(shim)
    shim.signal(signal.SIGUSR1)
    assert values(pod, "EXITED") == {"index": "0", "status": str(11 << 8), "held": "yes"}
    pod.wire.send("PASS", index=0)
    assert shim.finish() == (11, "", "")
    pod.expect("DONE")


def test_a_signal_to_a_task_whose_end_is_held_reaches_the_restored_one(coordinator: FakeCoordinator) -> None:
    pod, shim = held_task(coordinator, shell("exit 3"), 3 << 8)
    shim.signal(signal.SIGUSR1)
    wait_until(lambda: not int(status_field(shim.process.pid, "ShdPnd"), 16), "the shim has passed it on")
    settle(pod)
    pod.wire.send("KILL")
    pod.expect("KILLED")
    leader, tasks = restore(pod)
    pod.wire.send("ADOPT", leader=leader)
    pod.wire.send("SHIM", index=0, pid=tasks[0])
    hold(pod, "no")
    pod.wire.send("GO")
    assert shim.finish()[0] == 11
    assert values(pod, "SIGNALLED") == {"index": "0", "n": "10"}


def test_a_killed_leader_is_a_crash_of_its_tasks(coordinator: FakeCoordinator) -> None:
    pod, (shim,) = coordinator.run(SLEEP)
    hold(pod, "yes")
    settle(pod)
    os.kill(pod.leader_pid(), signal.SIGKILL)
    assert values(pod, "EXITED") == {"index": "0", "status": "9", "held": "yes"}
    pod.wire.send("KILL")
    pod.expect("KILLED")
    assert still_stands_in(shim)
    pod.wire.close()
    assert shim.finish()[0] == -signal.SIGKILL


def test_the_coordinators_end_passes_everything(coordinator: FakeCoordinator) -> None:
    pod, shim = held_task(coordinator, shell("exit 3"), 3 << 8)
    pod.wire.close()
    assert shim.finish() == (3, "", "")
    pod.wait_gone()


def test_without_a_coordinator_nothing_is_held(coordinator: FakeCoordinator) -> None:
    pod, (shim,) = coordinator.run(SLEEP)
    hold(pod, "yes", signal.SIGTERM)
    settle(pod)
    shim.signal(signal.SIGTERM)
    assert values(pod, "HELD") == {"index": "0", "n": "15"}
    pod.wire.close()
    assert shim.finish()[0] == -signal.SIGTERM
    pod.wait_gone()


def test_an_end_that_is_no_longer_to_be_held_passes(coordinator: FakeCoordinator) -> None:
    pod, shim = held_task(coordinator, shell("exit 3"), 3 << 8)
    hold(pod, "no")
    assert shim.finish() == (3, "", "")
    pod.expect("DONE")


def test_a_task_that_slurm_kills_is_not_held(coordinator: FakeCoordinator) -> None:
    """Slurm's SIGKILL reaches the shim: whoever would wait for the task is gone."""
    shims = [coordinator.started_shim(SLEEP), coordinator.started_shim(SLEEP)]
    pod = coordinator.pod(shims[0])
    hold(pod, "yes")
    pod.lead(shims)
    shims[0].process.kill()
    assert values(pod, "EXITED") == {"index": "0", "status": "9"}
    assert still_stands_in(shims[1])


def test_a_held_end_passes_when_slurm_kills_the_shim(coordinator: FakeCoordinator) -> None:
    pod, shim = held_task(coordinator, shell("exit 3"), 3 << 8)
    shim.process.kill()
    assert values(pod, "PASSED") == {"index": "0"}
    pod.expect("DONE")
    pod.wait_gone()


def test_a_held_end_passes_by_itself(coordinator: FakeCoordinator, impatient: Path) -> None:
    shim = coordinator.started_shim(shell("exit 3"))
    pod = coordinator.pod(shim, program=impatient)
    hold(pod, "yes", patience=None)
    since = time.monotonic()
    pod.lead([shim])
    assert pod.expect("EXITED").values["held"] == "yes"
    assert values(pod, "PASSED") == {"index": "0"}
    assert time.monotonic() - since >= 0.3
    assert shim.finish() == (3, "", "")
    pod.expect("DONE")


def test_the_coordinator_says_how_long_it_may_take(coordinator: FakeCoordinator) -> None:
    """For what is held already, and for what will be."""
    pod, shim = held_task(coordinator, shell("exit 3"), 3 << 8)
    since = time.monotonic()
    hold(pod, "yes", patience=300)
    assert values(pod, "PASSED") == {"index": "0"}
    assert time.monotonic() - since >= 0.3
    assert shim.finish()[0] == 3

    shim = coordinator.started_shim(SLEEP)
    pod = coordinator.pod(shim)
    hold(pod, "no", signal.SIGTERM, patience=300)
    pod.lead([shim])
    since = time.monotonic()
    shim.signal(signal.SIGTERM)
    assert values(pod, "HELD") == {"index": "0", "n": "15"}
    assert values(pod, "PASSED") == {"index": "0", "n": "15"}
    assert time.monotonic() - since >= 0.3
    assert shim.finish()[0] == -signal.SIGTERM


# Signals


def test_a_held_signal_is_delivered_once_when_it_is_passed(coordinator: FakeCoordinator, scratch: Path) -> None:
    pod, shim = counting_task(coordinator, scratch, signal.SIGUSR1, signal.SIGUSR2)
    hold(pod, "no", signal.SIGUSR1, signal.SIGTERM)
    settle(pod)
    shim.signal(signal.SIGUSR1)
    assert values(pod, "HELD") == {"index": "0", "n": "10"}
    shim.signal(signal.SIGUSR1)
    shim.signal(signal.SIGUSR2)
    assert values(pod, "SIGNALLED") == {"index": "0", "n": "12"}
    assert pod.notes == [], "the second one, while the first is held, counts no more than a pending signal"
    for _ in range(2):
        pod.wire.send("PASS", index=0, n=10)
    assert values(pod, "SIGNALLED") == {"index": "0", "n": "10"}
    shim.signal(signal.SIGRTMAX)
    assert shim.finish() == (0, "10 12 64\n", "")
    assert [note.verb for note in pod.notes] == []


def test_a_signal_can_be_held_again(coordinator: FakeCoordinator, scratch: Path) -> None:
    pod, shim = counting_task(coordinator, scratch, signal.SIGUSR1)
    hold(pod, "no", signal.SIGUSR1)
    settle(pod)
    for _ in range(3):
        shim.signal(signal.SIGUSR1)
        assert values(pod, "HELD") == {"index": "0", "n": "10"}
        pod.wire.send("PASS", index=0, n=10)
        assert values(pod, "SIGNALLED") == {"index": "0", "n": "10"}
    shim.signal(signal.SIGRTMAX)
    # the first two may have been one while the task had not looked yet
    assert set(shim.finish()[1].split()) == {"10", "64"}


def test_each_task_has_its_own_held_signals(coordinator: FakeCoordinator) -> None:
    pod, shims = coordinator.run(SLEEP, SLEEP)
    hold(pod, "no", signal.SIGTERM)
    settle(pod)
    for index in (1, 0):
        shims[index].signal(signal.SIGTERM)
        assert values(pod, "HELD") == {"index": str(index), "n": "15"}
    pod.wire.send("PASS", index=1, n=15)
    assert shims[1].finish()[0] == -signal.SIGTERM
    assert values(pod, "EXITED") == {"index": "1", "status": "15"}
    assert still_stands_in(shims[0])
    pod.wire.send("PASS", index=0, n=15)
    assert shims[0].finish()[0] == -signal.SIGTERM


def test_signals_that_are_no_longer_to_be_held_pass(coordinator: FakeCoordinator, scratch: Path) -> None:
    pod, shim = counting_task(coordinator, scratch, signal.SIGUSR1, signal.SIGUSR2)
    hold(pod, "no", signal.SIGUSR1, signal.SIGUSR2)
    settle(pod)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        shim.signal(number)
        assert values(pod, "HELD")["n"] == str(int(number))
    hold(pod, "no", signal.SIGUSR2)
    assert values(pod, "SIGNALLED") == {"index": "0", "n": "10"}
    settle(pod)
    assert pod.notes == []
    hold(pod)
    assert values(pod, "SIGNALLED") == {"index": "0", "n": "12"}
    shim.signal(signal.SIGRTMAX)
    assert shim.finish() == (0, "10 12 64\n", "")


@pytest.mark.parametrize("passed", ["before GO", "after GO"])
def test_a_held_signal_waits_for_the_restored_task(coordinator: FakeCoordinator, passed: str) -> None:
    pod, (shim,) = coordinator.run(SLEEP)
    hold(pod, "no", signal.SIGUSR1)
    settle(pod)
    shim.signal(signal.SIGUSR1)
    pod.expect("HELD")
    pod.wire.send("KILL")
    pod.expect("KILLED")
    leader, tasks = restore(pod)
    pod.wire.send("ADOPT", leader=leader)
    pod.wire.send("SHIM", index=0, pid=tasks[0])
    if passed == "after GO":
        pod.wire.send("GO")
        settle(pod)
        assert pod.notes == []
    pod.wire.send("PASS", index=0, n=10)
    if passed == "before GO":
        settle(pod)
        assert pod.notes == []
        pod.wire.send("GO")
    assert values(pod, "SIGNALLED") == {"index": "0", "n": "10"}
    assert shim.finish()[0] == 11


def test_a_signal_is_held_before_the_task_runs(coordinator: FakeCoordinator) -> None:
    shim = coordinator.started_shim(SLEEP)
    pod = coordinator.pod(shim)
    hold(pod, "no", signal.SIGUSR1)
    shim.signal(signal.SIGUSR1)
    pod.lead([shim])
    seen = [note for note in pod.notes if note.verb == "HELD"] or [pod.expect("HELD")]
    assert [dict(note.values) for note in seen] == [{"index": "0", "n": "10"}]
    settle(pod)
    assert still_stands_in(shim)
    pod.wire.send("PASS", index=0, n=10)
    assert shim.finish()[0] == -signal.SIGUSR1


def test_held_signals_pass_by_themselves_each_in_its_time(coordinator: FakeCoordinator, impatient: Path) -> None:
    shim = coordinator.started_shim(shell("trap '' USR1; exec sleep 1000"))
    pod = coordinator.pod(shim, program=impatient)
    pod.lead([shim])
    hold(pod, "no", signal.SIGUSR1, signal.SIGTERM, patience=None)
    settle(pod)
    task = pod.outer_pid(shim.pid_inside)
    wait_until(lambda: status_field(task, "Name") == "sleep", "the task ignores SIGUSR1")
    shim.signal(signal.SIGUSR1)
    assert values(pod, "HELD") == {"index": "0", "n": "10"}
    assert values(pod, "PASSED") == {"index": "0", "n": "10"}
    assert values(pod, "SIGNALLED") == {"index": "0", "n": "10"}
    since = time.monotonic()
    shim.signal(signal.SIGTERM)
    assert values(pod, "HELD") == {"index": "0", "n": "15"}
    assert values(pod, "PASSED") == {"index": "0", "n": "15"}
    assert time.monotonic() - since >= 0.3
    assert shim.finish()[0] == -signal.SIGTERM


def test_passing_nothing_does_nothing(coordinator: FakeCoordinator) -> None:
    pod, (shim,) = coordinator.run(SLEEP)
    hold(pod, "yes", signal.SIGTERM)
    for index in (0, 7):
        pod.wire.send("PASS", index=index)
        pod.wire.send("PASS", index=index, n=15)
    settle(pod)
    assert pod.notes == [] and still_stands_in(shim)


def test_nothing_is_held_for_a_coordinator_that_reads_nothing(coordinator: FakeCoordinator) -> None:
    pod, (shim,) = coordinator.run(shell("trap '' 34; trap 'exit 9' TERM; while :; do sleep 0.01; done"))
    wait_until(lambda: bool(children(pod.outer_pid(shim.pid_inside))), "the script has reached its loop")
    hold(pod, "no", signal.SIGTERM)
    settle(pod)
    # more notes than the connection and pod init keep
    for _ in range(5000):
        shim.signal(signal.SIGRTMIN)
    wait_until(lambda: not int(status_field(shim.process.pid, "ShdPnd"), 16), "the shim has passed them on")
    shim.signal(signal.SIGTERM)
    assert shim.finish()[0] == 9
    pod.expect("DONE")
    assert "HELD" not in [note.verb for note in pod.notes]
