"""What a process has that shows neither in its descriptors nor in its memory maps, and that CRIU does not carry."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass

from slurmckpt.capture import procfs, sysvipc, undo
from slurmckpt.capture.processes import Process

# kcmp(2): number (arch/x86/entry/syscalls/syscall_64.tbl, uapi/asm-generic/unistd.h) and what to compare.
_SYS_KCMP = {"x86_64": 312, "aarch64": 272}
_KCMP_VM, _KCMP_SYSVSEM = 1, 6
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Traits:
    """has_undo: it has used System V semaphores with SEM_UNDO, on a machine where that is not carried; of a process
    that has threads, or had some, nobody can say it there. personality: as personality(2), where it is not ours.
    is_vforked: it shares its parent's memory, as it has not executed its program yet (vfork(2)).
    """

    process: Process
    has_undo: bool
    personality: int | None
    is_vforked: bool = False


def read_traits(init_pid: int, processes: Iterable[Process]) -> list[Traits]:
    """Those of processes that have any. Raises IpcError."""
    has_sets = not undo.is_carried() and bool(sysvipc.look(init_pid).sets)
    ours = _personality(os.getpid())
    found: list[Traits] = []
    for process in processes:
        personality = _personality(process.pid)
        other = personality if personality is not None and personality != ours else None
        one = Traits(process, has_sets and _has_undo(process.pid, init_pid), other, _is_vforked(process))
        if one.has_undo or one.personality is not None or one.is_vforked:
            found.append(one)
    return found


def _is_vforked(process: Process) -> bool:
    return bool(process.ppid) and _compare(process.ppid, process.pid, _KCMP_VM) == 0


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
