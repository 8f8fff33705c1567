"""Small readings of /proc that do not depend on pods."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

# In a job's directory in /run: the note of the coordinator.
PID_FILE = "coordinator.pid"


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot (field 22 of /proc/PID/stat, proc(5)).

    Raises OSError when it is gone.
    """
    return int(_stat(pid)[19])


def note(path: Path, pid: int) -> None:
    """For whoever has to end the process, and finds nobody who knows of it. The start time guards against a reused pid.

    Raises OSError.
    """
    path.write_text(f"{pid} {start_time(pid)}\n", encoding="ascii")


def noted(path: Path) -> tuple[int, int]:
    """Pid and start time of a note. Raises OSError, or ValueError when it is none."""
    pid, started = path.read_text(encoding="ascii").split()
    return int(pid), int(started)


def parent_of(pid: int) -> int:
    """The parent of a process; 0 when the process is gone."""
    try:
        return int(_stat(pid)[1])
    except OSError:
        return 0


async def ended(pid: int) -> None:
    """Return when process `pid` has ended. Raises OSError when there is none."""
    pidfd = os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(pidfd, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on. The second, the command, may hold spaces and parentheses."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
