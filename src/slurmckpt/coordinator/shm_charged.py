"""Fills a job's /dev/shm in a process that belongs to the job, so that its memory counts as the job's (cgroups(7)).

What is in a tmpfs counts for whoever wrote it first. Written by the coordinator, a restored job would have the memory
of its segments on top of its limit, and slurmd would pay for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from slurmckpt.coordinator import shm
from slurmckpt.coordinator.shm import ShmError

# What the package lies in.
_ROOT = str(Path(__file__).resolve().parents[2])


def fill(directory: Path, archive: Path, cgroups: Sequence[Path]) -> None:
    """As shm.fill(). cgroups: files to write a pid to, those of the pod; none: as whoever calls. Raises ShmError."""
    if not cgroups:
        shm.fill(directory, archive)
        return
    # -I: nothing of the caller's environment and directory decides what root executes; but it is this very package.
    program = f"import sys; sys.path.insert(0, {_ROOT!r}); from {__name__} import main; main(*sys.argv[1:])"
    command = [sys.executable, "-I", "-c", program, str(directory), str(archive), *map(str, cgroups)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise ShmError(f"{sys.executable} cannot be executed: {error.strerror}") from error
    if done.returncode < 0:
        raise ShmError(
            f"/dev/shm of the job cannot be filled: killed by signal {-done.returncode}, for lack of memory perhaps"
        )
    if done.returncode:
        raise ShmError(done.stderr.strip().rpartition("\n")[2][:300] or "/dev/shm of the job cannot be filled")


def main(directory: str, archive: str, *cgroups: str) -> None:
    """In the process that fills: join the cgroups, then fill. Raises SystemExit with one line."""
    try:
        for path in cgroups:
            # 0 is whoever writes it, whatever its pid is there.
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, b"0")
            finally:
                os.close(descriptor)
        shm.fill(Path(directory), Path(archive))
    except ShmError as error:
        raise SystemExit(str(error)) from error
    except OSError as error:
        raise SystemExit(f"/dev/shm of the job cannot be filled: {error.filename}: {error.strerror}") from error
