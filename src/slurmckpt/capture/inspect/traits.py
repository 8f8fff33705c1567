"""What a process has that shows neither in its descriptors nor in its memory maps, and that CRIU does not carry."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from slurmckpt.capture import procfs, sysvipc, undo
from slurmckpt.capture.processes import Process

# kcmp(2): number (arch/x86/entry/syscalls/syscall_64.tbl, uapi/asm-generic/unistd.h) and what to compare.
_SYS_KCMP = {"x86_64": 312, "aarch64": 272}
_KCMP_VM, _KCMP_FILES, _KCMP_FS, _KCMP_SYSVSEM = 1, 2, 3, 6
# flags and exit_signal among the fields of /proc/PID/stat that follow the command (proc_pid_stat(5): the 9th and the
# 38th of all).
_FLAGS = 9 - 3
_EXIT_SIGNAL = 38 - 3
# Linux include/linux/sched.h: set before a task gives up what it has.
_PF_EXITING = 0x4
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Traits:
    """has_undo: it has used System V semaphores with SEM_UNDO, on a machine where that is not carried; of a process
    that has threads, or had some, nobody can say it there. personality: as personality(2), where it is not ours.
    is_vforked: it shares its parent's memory, as it has not executed its program yet (vfork(2)). end_signal: what its
    parent gets at its end, where that is not SIGCHLD. own_files, own_directory: whether a thread has, apart from the
    others (unshare(2)): open files; a working directory, root and umask. lost_main: its first thread has ended, and
    others run.
    """

    process: Process
    has_undo: bool
    personality: int | None
    is_vforked: bool = False
    end_signal: int | None = None
    own_files: bool = False
    own_directory: bool = False
    lost_main: bool = False


def read_traits(init_pid: int, processes: Iterable[Process]) -> list[Traits]:
    """Those of processes that have any. Raises IpcError."""
    has_sets = not undo.is_carried() and bool(sysvipc.look(init_pid).sets)
    ours = _personality(os.getpid())
    found: list[Traits] = []
    for process in processes:
        personality = _personality(process.pid)
        other = personality if personality is not None and personality != ours else None
        one = Traits(
            process,
            has_sets and _has_undo(process.pid, init_pid),
            other,
            _is_vforked(process),
            _end_signal(process.pid),
            *_threads(process.pid),
        )
        if one != Traits(process, False, None):
            found.append(one)
    return found


def _is_vforked(process: Process) -> bool:
    return bool(process.ppid) and _compare(process.ppid, process.pid, _KCMP_VM) == 0


def _end_signal(pid: int) -> int | None:
    fields = _stat(f"{procfs.PROC}/{pid}")
    number = int(fields[_EXIT_SIGNAL]) if len(fields) > _EXIT_SIGNAL else signal.SIGCHLD
    # -1: one that is gone but for its entry.
    return None if number in (signal.SIGCHLD, -1) else number


def _threads(pid: int) -> tuple[bool, bool, bool]:
    """own_files, own_directory and lost_main."""
    others = [int(name) for name in procfs.names(f"{procfs.PROC}/{pid}/task") if int(name) != pid]
    files, directory = (any(_differ(pid, tid, what) for tid in others) for what in (_KCMP_FILES, _KCMP_FS))
    lost_main = bool(others) and _is_ending(pid, pid) and any(not _is_ending(pid, tid) for tid in others)
    return files, directory, lost_main


def _differ(pid: int, tid: int, what: int) -> bool:
    """Whether a thread has this apart from its process. One that just ends has nothing any more, which is no sign."""
    return _compare(pid, tid, what) > 0 and not any(_is_ending(pid, one) for one in (pid, tid))


def _is_ending(pid: int, tid: int) -> bool:
    fields = _stat(f"{procfs.PROC}/{pid}/task/{tid}")
    return len(fields) <= _FLAGS or bool(int(fields[_FLAGS]) & _PF_EXITING)


def _stat(directory: str) -> list[bytes]:
    """What follows the command in /proc/PID/stat; nothing of a task that has gone."""
    return (procfs.read_record(f"{directory}/stat") or b"").rpartition(b") ")[2].split()


def _has_undo(pid: int, init_pid: int) -> bool:
    """Whether it has a list of adjustments: the kernel can compare it with that of pod init, which has none.

    Threads share one from the beginning (CLONE_SYSVSEM), with nothing in it.
    """
    return len(procfs.names(f"{procfs.PROC}/{pid}/task")) == 1 and _compare(init_pid, pid, _KCMP_SYSVSEM) > 0


def _compare(one: int, other: int, what: int) -> int:
    """0 when both have the same, more when not, -1 when nobody can say."""
    number = _SYS_KCMP.get(platform.machine())
    return -1 if number is None else int(_libc.syscall(number, one, other, what, 0, 0))


def _personality(pid: int) -> int | None:
    try:
        text = procfs.read_record(f"{procfs.PROC}/{pid}/personality")
    except PermissionError:
        return None
    return int(text, 16) if text else None
