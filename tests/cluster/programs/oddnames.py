"""Holds files of odd names in several ways, prints `ready`, and when `go` appears whether each is what it was.

Lines are `NAME USE VALUE`, the name as Python's repr shows it.
"""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Callable

NAMES = [b"gone (deleted)", b"a\nb", b"a\\012b (deleted)", b"\xff\xfe", b"tab\t \\ \"'", b"n" * 255]
HOME = os.getcwd()
LOCAL = f"/tmp/odd-{os.environ['SLURM_JOB_ID']}"
checks: list[tuple[bytes, str, Callable[[], object]]] = []


def same(descriptor: int, path: bytes) -> bool:
    """Whether the descriptor is of the file of this path, and is shown so."""
    shown = os.readlink(f"/proc/self/fd/{descriptor}".encode())
    return shown == path and os.path.samestat(os.fstat(descriptor), os.stat(path))


def append(descriptor: int, path: bytes) -> object:
    """What is in the file after one more line."""
    os.write(descriptor, b"after\n")
    with open(path, "rb") as file:
        return same(descriptor, path) and file.read()


def hold(directory: str, name: bytes) -> None:
    """Open for writing and for reading, mapped in both ways, and deleted."""
    for use in ("written", "read", "shared", "private", "deleted"):
        place = os.path.join(os.fsencode(directory), use.encode())
        os.makedirs(place, exist_ok=True)
        path = os.path.join(place, name[:237] if use == "deleted" else name)
        with open(path, "wb") as file:
            file.write(b"before\n")
        descriptor = os.open(path, os.O_RDONLY if use in ("read", "private") else os.O_RDWR | os.O_APPEND)
        checks.append((name, use, check_of(use, descriptor, path)))


def check_of(use: str, descriptor: int, path: bytes) -> Callable[[], object]:
    """What is to be looked at afterwards."""
    if use == "written":
        return lambda: append(descriptor, path)
    if use == "read":
        return lambda: same(descriptor, path) and os.read(descriptor, 100)
    if use == "deleted":
        os.unlink(path)
        return lambda: os.fstat(descriptor).st_nlink == 0 and os.pread(descriptor, 100, 0)
    shared = use == "shared"
    kind, protection = (mmap.MAP_SHARED, mmap.PROT_WRITE) if shared else (mmap.MAP_PRIVATE, 0)
    # It keeps no descriptor of the file.
    memory = mmap.mmap(descriptor, 0, kind, mmap.PROT_READ | protection, trackfd=False)  # type: ignore[call-arg]  # from Python 3.13 on
    os.close(descriptor)
    return lambda: memory[:]


for one in NAMES:
    for where in (HOME, LOCAL):
        hold(where, one)
shutil.copy("/usr/bin/sleep", "program (deleted)")
program = subprocess.Popen([f"{HOME}/program (deleted)", "1000"])
while os.readlink(f"/proc/{program.pid}/exe") != f"{HOME}/program (deleted)":
    time.sleep(0.01)
checks.append((b"program (deleted)", "executed", program.poll))
work = os.path.join(HOME, "work\n (deleted)")
os.mkdir(work)
os.chdir(work)
checks.append((b"work", "directory", lambda: os.getcwd() == work and os.listdir(work)))
print("ready", flush=True)
while not os.path.exists(f"{HOME}/go"):
    time.sleep(0.05)
for one, how, look in checks:
    try:
        print(one, how, look(), flush=True)
    except OSError as error:
        print(one, how, "failed:", error, flush=True)
program.kill()
