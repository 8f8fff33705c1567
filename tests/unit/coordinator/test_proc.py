"""Start time and parent of real processes, among them one with a name that looks like the end of a field."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurmckpt.coordinator.proc import parent_of, start_time


def test_this_process() -> None:
    assert parent_of(os.getpid()) == os.getppid()
    boot = next(
        int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime")
    )
    started = boot + start_time(os.getpid()) / os.sysconf("SC_CLK_TCK")
    assert abs(started - Path(f"/proc/{os.getpid()}").stat().st_ctime) < 120


def test_a_command_with_blanks_and_parentheses(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to(sys.executable)
    child = subprocess.Popen([program, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert child.stdout is not None
    child.stdout.readline()
    assert "a) R 1 (b" in Path(f"/proc/{child.pid}/stat").read_text()
    assert parent_of(child.pid) == os.getpid()
    assert start_time(child.pid) >= start_time(os.getpid())
    child.communicate(b"\n", timeout=10)
    assert parent_of(child.pid) == 0
    with pytest.raises(OSError):
        start_time(child.pid)
