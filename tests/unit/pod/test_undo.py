"""restart.so finds out what semaphores have to undo for a process that is stopped by its tracer, and sets it again."""

from __future__ import annotations

import ctypes
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.pod.harness import POD

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="there it does nothing"),
]

# uapi/linux/ptrace.h
PTRACE_CONT, PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 7, 17, 0x4206, 0x4207
_WALL = 0x40000000
_SYS_TGKILL = 234
# Makes a set of semaphores with these values, and changes them, each by `NUMBER CHANGE UNDO`; or takes that set.
# Answers each line of its input with the line turned round, and what the set holds.
CHILD = """
import ctypes, sys, threading
c = ctypes.CDLL(None, use_errno=True)
class Step(ctypes.Structure):
    _fields_ = [("number", ctypes.c_ushort), ("change", ctypes.c_short), ("flags", ctypes.c_short)]
threading.Thread(target=threading.Event().wait, daemon=True).start()
values = [int(word) for word in sys.argv[1].split()]
one = int(sys.argv[3]) if len(sys.argv) > 3 else c.semget(0, len(values), 0o1600)
if len(sys.argv) < 4:
    for number, value in enumerate(values):
        c.semctl(one, number, 16, value)
    for line in sys.argv[2].split(","):
        number, change, undo = map(int, line.split())
        assert c.semop(one, (Step * 1)(Step(number, change, 0o10000 * undo)), 1) == 0
print(one, flush=True)
for line in sys.stdin:
    print(line.strip()[::-1], [c.semctl(one, number, 12) for number in range(len(values))], flush=True)
"""
libc = ctypes.CDLL(None, use_errno=True)
Child = subprocess.Popen[str]


def start(children: list[Child], *arguments: str, beside: Child | None = None) -> tuple[Child, int]:
    """In an IPC namespace of its own, or in that of another one."""
    enter = ["nsenter", f"--ipc=/proc/{beside.pid}/ns/ipc"] if beside else ["unshare", "--ipc"]
    child = subprocess.Popen(
        [*enter, sys.executable, "-c", CHILD, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    children.append(child)
    assert child.stdout is not None
    return child, int(child.stdout.readline())


def loaded(directory: Path) -> ctypes.CDLL:
    """The plugin for one dump or restore, as it remembers what semaphores there are."""
    copy = directory / "plugin.so"
    if not copy.exists():
        shutil.copy(POD / "restart.so", copy)
    return ctypes.CDLL(str(copy))


def stopped(child: Child, action: str, directory: Path) -> None:
    """Call a function of the plugin for a process that stands still, and let it go on."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    plugin = loaded(directory)
    assert libc.ptrace(PTRACE_SEIZE, child.pid, None, None) == 0
    assert libc.ptrace(PTRACE_INTERRUPT, child.pid, None, None) == 0
    assert os.WIFSTOPPED(os.waitpid(child.pid, _WALL)[1])
    try:
        getattr(plugin, action)(child.pid, descriptor)
    finally:
        assert libc.ptrace(PTRACE_DETACH, child.pid, None, None) == 0
        os.close(descriptor)


def answer(child: Child, word: str) -> str:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(f"{word}\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


def adjustments(values: list[int], changes: list[tuple[int, int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for number, change, undo in changes:
        found[number] = found.get(number, 0) - change * undo
    return {number: one for number, one in found.items() if one}


def random_changes(seed: int) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Values of semaphores, and changes that are possible: no value and no adjustment leaves its range."""
    chance = random.Random(seed)
    values = [chance.choice([0, 1, 7, 300, 32766, 32767]) for _ in range(chance.choice([1, 5, 33, 70]))]
    now, undone, changes = list(values), [0] * len(values), []
    for _ in range(12):
        number, undo = chance.randrange(len(values)), chance.randrange(2)
        change = chance.choice([-1, 1, chance.randint(-32767, 32767)])
        if change and 0 <= now[number] + change <= 32767 and -32768 <= undone[number] - change * undo <= 32767:
            now[number] += change
            undone[number] -= change * undo
            changes.append((number, change, undo))
    return values, changes or [(0, 1 if values[0] < 32767 else -1, 1)]


@pytest.mark.parametrize("seed", range(12))
def test_what_is_to_be_undone(children: list[Child], tmp_path: Path, seed: int) -> None:
    """It is found and set without an effect on values; the end of the process that has got it back undoes it."""
    values, changes = random_changes(seed)
    child, number = start(
        children, " ".join(map(str, values)), ",".join(f"{one} {change} {undo}" for one, change, undo in changes)
    )
    before = answer(child, "one")
    stopped(child, "undo_save", tmp_path)
    assert answer(child, "two") == before.replace("eno", "owt")
    wanted = adjustments(values, changes)
    note = tmp_path / "semaphore-undo"
    lines = note.read_text().splitlines()
    mine = [line.split()[2:] for line in lines if line.split()[1] == str(number)]
    assert {int(one): int(change) for one, change in mine} == wanted

    other, _ = start(children, " ".join(map(str, values)), "", str(number), beside=child)
    assert answer(other, "one") == before
    note.write_text("".join(f"{other.pid} {number} {one} {change}\n" for one, change in wanted.items()))
    stopped(other, "undo_restore", tmp_path)
    assert not (tmp_path / "semaphore-undo.failed").exists()
    assert answer(other, "one") == before
    stopped(other, "undo_save", tmp_path)
    again = [line.split() for line in note.read_text().splitlines()][len(wanted) :]
    assert {int(one[2]): int(one[3]) for one in again if one[1] == str(number)} == wanted


def test_what_cannot_be_set_is_told(children: list[Child], tmp_path: Path) -> None:
    child, number = start(children, "3", "0 -1 1")
    (tmp_path / "semaphore-undo").write_text(f"{child.pid} {number} 7 5\n")
    stopped(child, "undo_restore", tmp_path)
    assert (tmp_path / "semaphore-undo.failed").exists()


def test_signals_wait_meanwhile(children: list[Child], tmp_path: Path) -> None:
    """One that is there already is delivered afterwards."""
    child, number = start(children, "3", "0 -1 1")
    assert libc.ptrace(PTRACE_SEIZE, child.pid, None, None) == 0
    assert libc.ptrace(PTRACE_INTERRUPT, child.pid, None, None) == 0
    os.waitpid(child.pid, _WALL)
    # To the thread itself: the other one is not stopped here.
    assert libc.syscall(_SYS_TGKILL, child.pid, child.pid, int(signal.SIGTERM)) == 0
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    loaded(tmp_path).undo_save(child.pid, descriptor)
    os.close(descriptor)
    assert f"{child.pid} {number} 0 1" in (tmp_path / "semaphore-undo").read_text().splitlines()
    assert libc.ptrace(PTRACE_DETACH, child.pid, None, None) == 0
    assert child.wait(60) == -signal.SIGTERM
