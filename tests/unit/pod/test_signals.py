"""Each signal reaches each task exactly once, whenever it comes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.unit.awaiting import wait_until
from tests.unit.pod.harness import FakeCoordinator, Shim, shell, status_field

pytestmark = pytest.mark.root

PYTHON = "/usr/bin/python3"
# Counts each signal it gets; ends at signal 64, which the kernel hands out last, and prints what came.
COUNTER = """
import os, signal, sys
path, wanted = sys.argv[1], {int(n) for n in sys.argv[2].split(',')}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
open(path, 'w').close()
seen = []
while not seen or seen[-1] != 64:
    seen.append(int(signal.sigwait(wanted)))
print(*sorted(seen))
"""
# SIGCONT and the stop signals take each other away while they are pending; they have a test of their own.
STOP_AND_CONTINUE = {signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
CATCHABLE = sorted(set(range(1, 65)) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, 32, 33} - STOP_AND_CONTINUE)


def blocked_in(shim: Shim) -> bool:
    """The shim has executed and blocks everything: from then on no signal can be lost."""
    try:
        return int(status_field(shim.process.pid, "SigBlk"), 16) >> (signal.SIGUSR2 - 1) & 1 == 1
    except OSError:
        return False


@pytest.fixture(autouse=True)
def needs_python() -> None:
    if not Path(PYTHON).exists():
        pytest.skip(f"needs {PYTHON}")


def test_every_catchable_signal_once(coordinator: FakeCoordinator, scratch: Path) -> None:
    ready = scratch / "ready"
    pod, (shim,) = coordinator.run([PYTHON, "-c", COUNTER, str(ready), ",".join(map(str, CATCHABLE))])
    wait_until(ready.exists, "the task waits for signals")
    for number in CATCHABLE:
        shim.signal(number)
        assert pod.expect("SIGNALLED").values == {"index": "0", "n": str(number)}
    code, out, err = shim.finish()
    assert (code, err) == (0, "")
    assert [int(word) for word in out.split()] == CATCHABLE


@pytest.mark.parametrize("number", [32, 33])
def test_signals_that_the_c_library_hides(coordinator: FakeCoordinator, number: int) -> None:
    pod, (shim,) = coordinator.run(shell("exec sleep 1000"))
    shim.signal(number)
    assert pod.expect("SIGNALLED").number("n") == number
    assert shim.finish()[0] == -number


def test_sigchld_is_not_passed_on(coordinator: FakeCoordinator) -> None:
    pod, (shim,) = coordinator.run(shell("exec sleep 1000"))
    shim.signal(signal.SIGCHLD)
    shim.signal(signal.SIGUSR1)
    assert pod.expect("SIGNALLED").number("n") == signal.SIGUSR1
    assert shim.finish()[0] == -signal.SIGUSR1


def test_signals_go_to_their_own_task(coordinator: FakeCoordinator) -> None:
    pod, (first, second) = coordinator.run(shell("exec sleep 1000"), shell("exec sleep 1000"))
    second.signal(signal.SIGUSR1)
    assert second.finish()[0] == -signal.SIGUSR1
    assert pod.expect("SIGNALLED").values == {"index": "1", "n": "10"}
    assert first.process.poll() is None
    first.signal(signal.SIGINT)
    assert first.finish()[0] == -signal.SIGINT


def test_stop_and_continue(coordinator: FakeCoordinator) -> None:
    pod, (shim,) = coordinator.run(shell("exec sleep 1000"))
    task = pod.outer_pid(shim.pid_inside)
    wait_until(lambda: "sleep" in status_field(task, "Name"), "the task is executed")
    shim.signal(signal.SIGTSTP)
    wait_until(lambda: status_field(task, "State").startswith("T"), "the task has stopped")
    assert not status_field(shim.process.pid, "State").startswith("T")
    shim.signal(signal.SIGCONT)
    wait_until(lambda: not status_field(task, "State").startswith("T"), "the task goes on")
    shim.signal(signal.SIGTERM)
    assert shim.finish()[0] == -signal.SIGTERM


@pytest.mark.parametrize("when", ["before START is read", "after START", "after RUN"])
def test_a_signal_before_the_task_runs_reaches_it(coordinator: FakeCoordinator, when: str) -> None:
    shim = coordinator.shim(shell("exec sleep 1000"))
    if when == "before START is read":
        wait_until(lambda: blocked_in(shim), "the shim blocks signals")
        shim.signal(signal.SIGUSR1)
    shim.start()
    if when == "after START":
        shim.signal(signal.SIGUSR1)
    pod = coordinator.pod(shim)
    pod.announce([shim])
    if when == "after RUN":
        shim.wire.send("RUN")
        shim.signal(signal.SIGUSR1)
        wait_until(lambda: not int(status_field(shim.process.pid, "ShdPnd"), 16), "the shim has passed it on")
        pod.wire.send("GO")
        shim.wire.close()
    else:
        pod.go([shim])
    assert shim.finish()[0] == -signal.SIGUSR1
    assert pod.expect("SIGNALLED").number("n") == signal.SIGUSR1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGRTMIN, 32])
def test_a_signal_before_direct_reaches_the_task(coordinator: FakeCoordinator, number: int) -> None:
    shim = coordinator.started_shim(shell("exec sleep 1000"))
    shim.signal(number)
    shim.wire.send("DIRECT")
    assert shim.finish()[0] == -number


def test_a_blocked_signal_before_direct_stays_pending(coordinator: FakeCoordinator) -> None:
    def block() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGUSR2})

    shim = coordinator.started_shim(shell("exec cat /proc/self/status"), before_exec=block)
    shim.signal(signal.SIGUSR2)
    shim.wire.send("DIRECT")
    code, out, _ = shim.finish()
    fields = dict(line.split(":\t", 1) for line in out.splitlines() if ":\t" in line)
    assert code == 0
    assert int(fields["SigBlk"], 16) == int(fields["ShdPnd"], 16) == 1 << (signal.SIGUSR2 - 1)


def test_ignored_signals_stay_ignored(coordinator: FakeCoordinator) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    pod, (shim,) = coordinator.run(shell("exec sleep 1000"), before_exec=ignore)
    shim.signal(signal.SIGHUP)
    assert pod.expect("SIGNALLED").number("n") == signal.SIGHUP
    shim.signal(signal.SIGTERM)
    assert shim.finish()[0] == -signal.SIGTERM


def test_many_signals_while_nobody_reads(coordinator: FakeCoordinator) -> None:
    """Real-time signals queue: none may be lost while the shim's connection is congested."""
    shim = coordinator.started_shim(shell("exec sleep 1000"))
    shim.wire.send("RUN")
    sent = 2000
    for _ in range(sent):
        shim.signal(signal.SIGRTMIN)
    got = 0
    while got < sent:
        message = shim.wire.expect("SIGNAL")
        assert message.values == {"n": str(int(signal.SIGRTMIN))}
        got += 1
    shim.wire.send("EXIT", status=0)
    assert shim.finish()[0] == 0


def test_a_users_kill_of_everything_does_not_end_pod_init_or_leader(coordinator: FakeCoordinator) -> None:
    script = "trap '' TERM; kill -TERM -1; kill -HUP -1 2>/dev/null; sleep 0.05; exit 6"
    pod, (shim,) = coordinator.run(shell(f"trap '' HUP; {script}"))
    assert shim.finish()[0] == 6
    assert pod.expect("EXITED").number("status") == 6 << 8
    pod.expect("DONE")
