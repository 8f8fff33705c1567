"""System V objects in the IPC namespace of a pod: what CRIU's image leaves out of them, and their removal.

CRIU carries segments, semaphore sets and message queues with their ids, keys, modes and content. It forgets that a
segment was removed while processes had it attached (IPC_RMID; at a restore it would stay for ever), and that a
semaphore set had been used (sem_otime, by which programs tell a set that somebody is still initialising).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path

from slurmckpt.capture import mqueues, notes, procfs
from slurmckpt.capture.ipcspace import PodGone, check, inside, libc

FILE = "system-v.json"
_SHM_DEST = 0o1000  # include/linux/shm.h
_MAX_BYTES = 16 << 20
# uapi/linux/ipc.h, uapi/linux/sem.h
_IPC_RMID = 0
_IPC_NOWAIT = 0o4000
_GETVAL = 12


@dataclass(frozen=True)
class Objects:
    """What there is, by id. removed: segments that are gone when the last process lets go of them. used: semaphore sets
    on which semop() was called. bytes: of memory that the segments have."""

    segments: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    sets: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    queues: list[int] = field(default_factory=list)
    bytes: int = 0


def look(init_pid: int) -> Objects:
    """The objects in the pod's IPC namespace; none of one that is gone. init_pid: on this node. Raises IpcError."""
    try:
        return inside(init_pid, _read)
    except PodGone:
        return Objects()


def save(init_pid: int, images: Path) -> None:
    """Note beside the images what they leave out; nothing when there is nothing. Raises IpcError or OSError."""
    found = look(init_pid)
    if found.removed or found.used:
        notes.save(images / FILE, {"removed": found.removed, "used": found.used})


def mend(init_pid: int, images: Path) -> None:
    """Put right what CRIU has restored from these images, before the processes run. Raises IpcError or OSError."""
    note = notes.load(images / FILE)
    if note is None:
        return

    def put_right() -> None:
        c = libc()
        for number in note["removed"]:
            check(c.shmctl(number, _IPC_RMID, None), "shmctl")
        for number in note["used"]:
            # Up and down again, or the other way round, changes nothing but the time of the last use.
            first = -1 if check(c.semctl(number, 0, _GETVAL), "semctl") else 1
            steps = (_SemBuf * 2)(_SemBuf(0, first, _IPC_NOWAIT), _SemBuf(0, -first, _IPC_NOWAIT))
            check(c.semop(number, steps, 2), "semop")

    inside(init_pid, put_right)


def clear(init_pid: int) -> None:
    """Remove all objects, and POSIX queues: a restore in the same pod needs their ids. Raises IpcError."""

    def remove() -> None:
        c, found = libc(), _read()
        for number in found.segments:
            check(c.shmctl(number, _IPC_RMID, None), "shmctl")
        for number in found.sets:
            check(c.semctl(number, 0, _IPC_RMID), "semctl")
        for number in found.queues:
            check(c.msgctl(number, _IPC_RMID, None), "msgctl")

    inside(init_pid, remove)
    mqueues.clear(init_pid)


class _SemBuf(ctypes.Structure):
    """struct sembuf (semop(2))."""

    _fields_ = (("number", ctypes.c_ushort), ("change", ctypes.c_short), ("flags", ctypes.c_short))


def _read() -> Objects:
    """The objects in the namespace of this thread (proc_sysvipc(5)); the tables hold numbers only."""
    segments, sets, queues = (_table(name) for name in ("shm", "sem", "msg"))
    return Objects(
        segments=[row["shmid"] for row in segments],
        removed=[row["shmid"] for row in segments if row["perms"] & _SHM_DEST],
        sets=[row["semid"] for row in sets],
        used=[row["semid"] for row in sets if row["otime"]],
        queues=[row["msqid"] for row in queues],
        bytes=sum(row["rss"] + row["swap"] for row in segments),
    )


def _table(name: str) -> list[dict[str, int]]:
    path = f"{procfs.PROC}/sysvipc/{name}"
    text = procfs.read(path, _MAX_BYTES)
    if text is None:
        return []  # a kernel without CONFIG_SYSVIPC has no such objects
    header, *rows = text.decode("ascii").splitlines()
    names = header.split()
    return [
        {key: int(value, 8 if key == "perms" else 10) for key, value in zip(names, row.split(), strict=True)}
        for row in rows
    ]
