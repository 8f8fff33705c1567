"""Start time and parent of real processes, among them one with a name that looks like the end of a field."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurmckpt.coordinator.proc import ended, parent_of, start_time
from tests.unit.coordinator.parts import no_descriptor_is_lost


def test_this_process() -> None:
    assert parent_of(os.getpid()) == os.getppid()


def test_when_a_process_was_started() -> None:
    """In ticks of the clock since the boot."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    child = subprocess.Popen(["sleep", "60"])
    after = time.clock_gettime(time.CLOCK_BOOTTIME)
    started = start_time(child.pid) / os.sysconf("SC_CLK_TCK")
    child.kill()
    child.wait()
    assert before - 0.02 <= started <= after


def test_a_command_with_blanks_and_parentheses(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to(sys.executable)
    child = subprocess.Popen([program, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert child.stdout is not None
    child.stdout.readline()
    assert "a) R 1 (b" in Path(f"/proc/{child.pid}/stat").read_text()
    assert parent_of(child.pid) == os.getpid()
    assert start_time(child.pid) >= start_time(os.getpid())
    child.communicate(b"\n", timeout=60)
    assert parent_of(child.pid) == 0
    with pytest.raises(OSError):
        start_time(child.pid)


def test_the_end_of_a_process_that_is_not_our_child() -> None:
    program = "import subprocess; print(subprocess.Popen(['sleep', '1000'], stdout=-3).pid, flush=True); input()"
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())

    async def scene() -> None:
        waiting = [asyncio.create_task(ended(pid)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        waiting[1].cancel()
        os.kill(pid, 9)
        await asyncio.wait_for(waiting[0], 60)

    with no_descriptor_is_lost():
        asyncio.run(scene())
    parent.communicate(b"\n", timeout=60)


def test_a_process_that_there_is_not() -> None:
    for pid in (0, 0x7FFFFFFF):
        with no_descriptor_is_lost(), pytest.raises(OSError):
            asyncio.run(ended(pid))
