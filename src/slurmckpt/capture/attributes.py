"""Attributes of threads and processes that CRIU does not carry: the CPUs they may use, I/O priority, timer slack, and
what a core dump of theirs holds.

CPUs are counted within those that Slurm has given: what ran on the third of them runs on the third of the new ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ParamSpec

from slurmckpt.capture import notes, procfs
from slurmckpt.capture.processes import Process, pod_processes

log = logging.getLogger(__name__)
P = ParamSpec("P")

FILE = "attributes.json"
# (ioprio_set, ioprio_get) of the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl, uapi/asm-generic/unistd.h).
_SYSCALLS = {"x86_64": (251, 252), "aarch64": (30, 31)}
_IOPRIO_WHO_PROCESS = 1  # uapi/linux/ioprio.h; a thread, by its id
_libc = ctypes.CDLL(None, use_errno=True)


def cpus_of(pids: Iterable[int]) -> list[int]:
    """All CPUs that these processes may use: those that Slurm has given to its tasks. Gone ones are left out."""
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found |= os.sched_getaffinity(pid)
    return sorted(found)


def save(processes: Sequence[Process], given: Sequence[int], images: Path) -> None:
    """Note beside the images what these processes have. given: the CPUs of their tasks. Raises OSError."""
    threads, filters = {}, {}
    for process in processes:
        for tid, number in _threads(process):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                slack = (procfs.read_record(f"{procfs.PROC}/{tid}/timerslack_ns") or b"").decode().strip()
                threads[str(number)] = [sorted(os.sched_getaffinity(tid)), _io_priority(tid), slack]
        dumped = procfs.read_record(f"{procfs.PROC}/{process.pid}/coredump_filter")
        if dumped:
            filters[str(process.ns_pid)] = dumped.decode().strip()
    notes.save(images / FILE, {"given": list(given), "threads": threads, "filters": filters})


def apply(init_pid: int, given: Sequence[int], images: Path) -> None:
    """Give to the processes of a pod what those of these images had. given: the CPUs of their tasks now.

    What the kernel refuses is logged and left as it is: a rank that runs on other CPUs is better than none. Raises
    OSError when the note cannot be read, SlurmckptError when the pod is gone.
    """
    note: dict[str, Any] | None = notes.load(images / FILE)
    if note is None:
        return
    for process in pod_processes(init_pid):
        if (dumped := note["filters"].get(str(process.ns_pid))) is not None:
            _attempt(process, "core dump filter", _write, process.pid, "coredump_filter", f"0x{dumped}")
        for tid, number in _threads(process):
            if (saved := note["threads"].get(str(number))) is None:
                continue
            cpus, priority, slack = saved
            _attempt(process, "CPUs", os.sched_setaffinity, tid, placed(cpus, note["given"], given))
            if _io_priority(tid) != priority:
                _attempt(process, "I/O priority", _set_io_priority, tid, priority)
            if slack:
                _attempt(process, "timer slack", _write, tid, "timerslack_ns", slack)


def placed(cpus: Iterable[int], before: Sequence[int], now: Sequence[int]) -> set[int]:
    """Where a thread that could use `cpus`, of those that Slurm had given `before`, may run of those given `now`."""
    if not now or list(before) == list(now):
        return set(cpus)
    if set(cpus) >= set(before):
        return set(now)
    return {now[before.index(cpu) % len(now)] for cpu in cpus if cpu in before} or set(now)


def _threads(process: Process) -> Iterator[tuple[int, int]]:
    """The threads of a process: id on this node, and id inside the pod."""
    names = procfs.names(f"{procfs.PROC}/{process.pid}/task")
    for name in names:
        if int(name) == process.pid:
            yield process.pid, process.ns_pid
        elif status := procfs.read_record(f"{procfs.PROC}/{process.pid}/task/{name}/status"):
            numbers = procfs.fields(status).get("NSpid", "").split()
            if numbers:
                yield int(name), int(numbers[-1])


def _attempt(process: Process, what: str, action: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    try:
        action(*args, **kwargs)
    except OSError as error:
        log.warning("the %s of %s cannot be set as they were: %s", what, process, error.strerror)


def _write(pid: int, name: str, text: str) -> None:
    with open(f"{procfs.PROC}/{pid}/{name}", "w", encoding="ascii") as file:
        file.write(text)


def _io_priority(tid: int) -> int:
    numbers = _SYSCALLS.get(platform.machine())
    return 0 if numbers is None else int(_libc.syscall(numbers[1], _IOPRIO_WHO_PROCESS, tid))


def _set_io_priority(tid: int, priority: int) -> None:
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is not None and _libc.syscall(numbers[0], _IOPRIO_WHO_PROCESS, tid, priority) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
