"""The shim's relay at the ends: of streams, tasks, pods, shims and readers."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess

import pytest

from tests.unit.awaiting import PATIENCE, wait_until
from tests.unit.pod.harness import FakeCoordinator, process_exists, shell
from tests.unit.pod.relaying import (
    ERR,
    F_SETPIPE_SZ,
    OUT,
    Stage,
    fill,
    is_blocked,
)

pytestmark = pytest.mark.root


def test_standard_output_closed_early_ends_for_its_reader(stage: Stage) -> None:
    out, err = stage.pipe(), stage.pipe()
    shim = stage.started(out, err)
    stage.write(b"line\nrest")
    stage.close_end(OUT)
    wait_until(out.at_end, "the reader sees the end")
    assert out.seen == b"line\nrest"
    stage.write(b"the other goes on\n", ERR)
    wait_until(lambda: err.read() == b"the other goes on\n", "standard error")
    stage.close_end(ERR)
    shim.wire.send("SAY", text="said after all")
    wait_until(lambda: err.read() == b"the other goes on\nsaid after all\n", "standard error is open for SAY")
    shim.wire.send("EXIT", status=5 << 8)
    assert shim.process.wait(PATIENCE) == 5


@pytest.mark.parametrize("status", [0, 3 << 8, 9])
def test_exit_passes_on_what_is_there_and_what_is_held(stage: Stage, owner: int, status: int) -> None:
    out, err = stage.pipe(owner=owner), stage.pipe(owner=owner)
    shim = stage.started(out, err)
    stage.write(b"held")
    stage.rest(shim)
    shim.signal(signal.SIGSTOP)
    stage.write(b" and more\nrest")
    stage.write(b"e" * 60_000 + b"\nend", ERR)
    shim.wire.send("EXIT", status=status)
    # a process that the task left behind has the pipes still open
    shim.signal(signal.SIGCONT)
    assert out.read_to_end() == b"held and more\nrest"
    assert err.read_to_end() == b"e" * 60_000 + b"\nend"
    assert shim.process.wait(PATIENCE) == (-9 if status == 9 else status >> 8)
    with pytest.raises(BrokenPipeError):
        stage.write(b"x")


def test_a_writer_left_behind_does_not_keep_the_shim(coordinator: FakeCoordinator) -> None:
    """One that never stops writing: what the task wrote has come, and the shim has ended."""
    script = "echo first; setsid yes & echo last >&2; exit 6"
    _, (shim, other) = coordinator.run(shell(script), shell("exec sleep 1000"))
    code, out, err = shim.finish()
    assert (code, err) == (6, "last\n")
    assert out.startswith(("first\n", "y\n")) and "first\n" in out
    assert other.process.poll() is None


def test_a_silent_writer_left_behind_does_not_keep_the_shim(coordinator: FakeCoordinator) -> None:
    _, (shim, other) = coordinator.run(
        shell("echo text; printf rest; setsid sleep 1000 & exit 6"), shell("exec sleep 1000")
    )
    assert shim.finish() == (6, "text\nrest", "")
    assert other.process.poll() is None


def test_a_slow_reader_stops_neither_signals_nor_the_other_stream(stage: Stage, owner: int) -> None:
    out, err = stage.pipe(owner=owner), stage.pipe(owner=owner)
    shim = stage.started(out, err)
    lines = fill(stage, shim, 1_000_000)
    for number in (signal.SIGUSR1, signal.SIGTERM):
        shim.signal(number)
        assert shim.wire.expect("SIGNAL").number("n") == number
    stage.write(b"meanwhile\n", ERR)
    wait_until(lambda: err.read() == b"meanwhile\n", "standard error")
    assert is_blocked(shim)
    wait_until(lambda: out.at_end(), "all lines")
    assert out.seen == lines


def test_exit_waits_for_a_slow_reader(stage: Stage, owner: int) -> None:
    out = stage.pipe(owner=owner, capacity=4096)
    shim = stage.started(out)
    lines = b"".join(b"%09d\n" % i for i in range(10_000))
    shim.signal(signal.SIGSTOP)
    stage.write(lines[:4000])
    shim.wire.send("EXIT", status=4 << 8)
    shim.signal(signal.SIGCONT)
    assert shim.process.wait(PATIENCE) == 4, "it all fits"
    assert out.read_to_end() == lines[:4000]

    out = stage.pipe(owner=owner, capacity=4096)
    shim = stage.started(out)
    end = stage.task[OUT]
    fcntl.fcntl(end, F_SETPIPE_SZ, 1 << 18)
    shim.signal(signal.SIGSTOP)
    stage.write(lines + b"rest")
    shim.wire.send("EXIT", status=4 << 8)
    shim.signal(signal.SIGCONT)
    wait_until(lambda: is_blocked(shim), "the shim waits for room")
    assert shim.process.poll() is None
    assert out.read_to_end() == lines + b"rest"
    assert shim.process.wait(PATIENCE) == 4


def test_killed_pod_and_a_reader_that_takes_nothing(stage: Stage) -> None:
    out = stage.pipe(capacity=4096)
    shim = stage.started(out)
    lines = fill(stage, shim, 100_000)
    shim.wire.close()
    assert shim.process.wait(PATIENCE) == -signal.SIGKILL
    taken = out.read_to_end()
    assert 0 < len(taken) <= 4096 and lines.startswith(taken)


def test_killed_pod_leaves_its_output(stage: Stage, owner: int) -> None:
    out = stage.pipe(owner=owner)
    shim = stage.started(out)
    shim.signal(signal.SIGSTOP)
    stage.write(b"line\nrest")
    shim.wire.close()
    shim.signal(signal.SIGCONT)
    assert out.read_to_end() == b"line\nrest"
    assert shim.process.wait(PATIENCE) == -signal.SIGKILL


def test_killed_shim_kills_its_task(coordinator: FakeCoordinator) -> None:
    pod, (shim,) = coordinator.run(["/usr/bin/yes"], stdout=subprocess.PIPE)
    task = pod.outer_pid(shim.pid_inside)
    shim.process.kill()
    assert pod.expect("EXITED").number("status") in (signal.SIGKILL, signal.SIGPIPE)
    pod.expect("DONE")
    assert not process_exists(task)


def test_reader_gone_is_sigpipe_for_the_task(coordinator: FakeCoordinator) -> None:
    pod, (shim,) = coordinator.run(["/usr/bin/yes"])
    assert shim.process.stdout is not None
    assert os.read(shim.process.stdout.fileno(), 2) == b"y\n"
    shim.process.stdout.close()
    shim.process.stdout = None
    assert shim.finish()[0] == -signal.SIGPIPE
    assert pod.expect("EXITED").number("status") == signal.SIGPIPE


def test_reader_gone_while_nothing_is_written(stage: Stage, owner: int) -> None:
    """The very next write of the task fails, as it would without a relay, and no signal comes from nowhere."""
    out, err = stage.pipe(owner=owner), stage.pipe()
    shim = stage.started(out, err)
    stage.write(b"half a line")
    stage.rest(shim)
    out.close_reader()
    end = stage.task[OUT]
    wait_until(lambda: bool(_errors(end)), "the shim has closed its side")
    with pytest.raises(BrokenPipeError):
        os.write(end, b"x")
    assert shim.held_bytes(OUT) == b""
    shim.signal(signal.SIGUSR2)
    assert shim.wire.expect("SIGNAL").number("n") == signal.SIGUSR2
    stage.write(b"the other goes on\n", ERR)
    wait_until(lambda: err.read() == b"the other goes on\n", "standard error")


def test_reader_gone_while_the_pipe_is_full(stage: Stage, owner: int) -> None:
    out = stage.pipe(owner=owner)
    shim = stage.started(out)
    fill(stage, shim, 1_000_000)
    out.close_reader()
    shim.signal(signal.SIGUSR2)
    assert shim.wire.expect("SIGNAL").number("n") == signal.SIGUSR2
    wait_until(lambda: OUT not in stage.task, "the writer got EPIPE")
    shim.signal(signal.SIGPIPE)
    assert shim.wire.expect("SIGNAL").number("n") == signal.SIGPIPE, "one from outside is passed on"
    assert not shim.wire.ready()
    shim.wire.send("EXIT", status=0)
    assert shim.process.wait(PATIENCE) == 0


def test_reader_gone_at_the_end(stage: Stage, owner: int) -> None:
    out = stage.pipe(owner=owner)
    shim = stage.started(out)
    shim.signal(signal.SIGSTOP)
    stage.write(b"nobody\nreads this")
    shim.wire.send("EXIT", status=2 << 8)
    out.close_reader()
    shim.signal(signal.SIGCONT)
    assert shim.process.wait(PATIENCE) == 2


def _errors(end: int) -> int:
    poll = select.poll()
    poll.register(end, 0)
    return dict(poll.poll(0)).get(end, 0) & select.POLLERR
