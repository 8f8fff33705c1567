"""Our own lines in what a relay passes on, and what a capture relies on."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from slurmckpt.capture.drain import drain
from tests.unit.awaiting import PATIENCE, wait_until
from tests.unit.pod.harness import FakeCoordinator, Shim, children, shell
from tests.unit.pod.relaying import (
    ERR,
    OUT,
    Stage,
    fill,
    is_blocked,
    waiting_bytes,
)

pytestmark = pytest.mark.root


def test_say_comes_between_lines(stage: Stage, owner: int) -> None:
    err = stage.pipe(owner=owner)
    shim = stage.started(subprocess.DEVNULL, err)
    stage.write(b"line\nhalf", ERR)
    stage.rest(shim)
    shim.wire.send("SAY", text="said\x1b")
    wait_until(lambda: err.read() == b"line\nsaid?\n", "the line comes at once")
    assert shim.held_bytes(ERR) == b"half"
    stage.write(b" done\n", ERR)
    stage.rest(shim)
    assert err.read() == b"line\nsaid?\nhalf done\n"


def test_say_goes_to_the_pipe_of_both(stage: Stage) -> None:
    both = stage.pipe()
    shim = stage.started(both, both)
    stage.write(b"half", OUT)
    stage.rest(shim)
    shim.wire.send("SAY", text="said")
    wait_until(lambda: both.read() == b"said\n", "the line comes at once")
    stage.close_end(OUT)
    stage.close_end(ERR)
    wait_until(lambda: both.read() == b"said\nhalf", "the held rest")
    shim.wire.send("SAY", text="again")
    wait_until(lambda: both.read() == b"said\nhalf\nagain\n", "it starts a line of its own")


def test_say_waits_for_the_end_of_a_long_line(stage: Stage) -> None:
    err = stage.pipe()
    shim = stage.started(subprocess.DEVNULL, err)
    stage.write(b"x" * 1500, ERR)
    stage.rest(shim)
    shim.wire.send("SAY", text="one")
    shim.wire.send("SAY", text="two")
    stage.write(b"y\nhalf", ERR)
    wait_until(lambda: b"two" in err.read(), "both lines")
    assert err.read() == b"x" * 1500 + b"y\none\ntwo\n"
    assert shim.held_bytes(ERR) == b"half"


def test_say_does_not_wait_for_ever(stage: Stage) -> None:
    """A progress bar is one line that never ends."""
    err = stage.pipe()
    shim = stage.started(subprocess.DEVNULL, err)
    stage.write(b"x" * 1500, ERR)
    stage.rest(shim)
    shim.wire.send("SAY", text="said")
    wait_until(lambda: b"said" in err.read(), "the line")
    assert err.read() == b"x" * 1024 + b"\nsaid\n"
    assert shim.held_bytes(ERR) == b"x" * 476


def test_say_while_the_pipe_is_full(stage: Stage) -> None:
    both = stage.pipe()
    shim = stage.started(both, both)
    lines = fill(stage, shim, 500_000)
    for i in range(100):
        shim.wire.send("SAY", text=f"said {i} " + "z" * 1000)
    shim.signal(signal.SIGUSR1)
    assert shim.wire.expect("SIGNAL").number("n") == signal.SIGUSR1, "nothing waits for the reader"
    wait_until(lambda: both.read().count(b"\n") >= len(lines) // 10 and OUT not in stage.task, "all lines")
    stage.rest(shim)
    seen = both.read().splitlines(keepends=True)
    said = [line for line in seen if line.startswith(b"said")]
    assert b"".join(line for line in seen if not line.startswith(b"said")) == lines
    numbers = [int(line.split()[1]) for line in said]
    assert said == [f"said {i} {'z' * 1000}\n".encode() for i in numbers], "each of them is whole"
    assert numbers == sorted(set(numbers)) and len(numbers) >= 10


def test_say_and_exit_at_once(stage: Stage) -> None:
    err = stage.pipe()
    shim = stage.started(subprocess.DEVNULL, err)
    shim.signal(signal.SIGSTOP)
    stage.write(b"x" * 1500, ERR)
    shim.wire.send("SAY", text="the end")
    shim.wire.send("EXIT", status=1 << 8)
    shim.signal(signal.SIGCONT)
    assert err.read_to_end() in (b"x" * 1500 + b"\nthe end\n", b"the end\n" + b"x" * 1500)
    assert shim.process.wait(PATIENCE) == 1


def test_say_when_nobody_reads(stage: Stage) -> None:
    err = stage.pipe()
    shim = stage.started(subprocess.DEVNULL, err)
    err.close_reader()
    shim.wire.send("SAY", text="to nobody")
    shim.signal(signal.SIGUSR1)
    assert shim.wire.expect("SIGNAL").number("n") == signal.SIGUSR1
    assert not shim.wire.ready()


# ---- what a capture relies on ----


def drained(shim: Shim, *pipes: int) -> str:
    """Why output is still under way, or nothing."""
    result = asyncio.run(drain(list(pipes), [shim.process.pid], 0.2))
    return "" if result.ok else result.reason


def test_drain_sees_a_shim_that_holds_as_one_at_rest(stage: Stage) -> None:
    out = stage.pipe()
    shim = stage.started(out, stage.pipe())
    stage.write(b"line\nhalf")
    stage.rest(shim)
    assert out.read() == b"line\n"
    assert drained(shim, stage.task[OUT], stage.task[ERR]) == ""


def test_drain_sees_a_shim_that_waits_for_its_reader(stage: Stage) -> None:
    out = stage.pipe()
    shim = stage.started(out)
    # so much that nothing stays in the task's own pipe: one buffer is in the shim
    stage.write(b"x\n" * 32768)
    wait_until(lambda: waiting_bytes(out.reader) == 65536, "the reader's pipe is full")
    stage.write(b"y\n" * 500)
    wait_until(lambda: is_blocked(shim) and waiting_bytes(stage.task[OUT]) == 0, "the shim waits for room")
    assert f"holds output that it cannot write to pipe:[{out.inode}]" in drained(shim, stage.task[OUT])
    out.read()
    stage.rest(shim)
    out.read()
    assert drained(shim, stage.task[OUT]) == ""


def test_nobody_but_the_task_holds_its_end(coordinator: FakeCoordinator) -> None:
    """Otherwise the shim would never see that the task has closed it."""
    pod, (shim,) = coordinator.run(shell("exec 1>&- ; exec sleep 1000"))
    task = pod.outer_pid(shim.pid_inside)
    wait_until(lambda: Path(f"/proc/{task}/comm").read_text() == "sleep\n", "the task has closed it")
    assert shim.process.stdout is not None
    assert shim.process.stdout.read() == b""
    assert not children(task)


def test_out_of_descriptors_is_said_and_the_task_runs(coordinator: FakeCoordinator) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))

    shim = coordinator.shim(shell("echo ran"), before_exec=limit)
    code, out, err = shim.finish()
    assert (code, out) == (0, "ran\n")
    assert err.startswith("slurmckpt: this task runs without checkpoints: cannot make a pipe for the task's output: ")
    assert os.strerror(errno.EMFILE) in err
