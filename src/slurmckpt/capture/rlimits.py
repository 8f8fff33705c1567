"""Limits of the job's processes that CRIU itself would run into, as some of its work is done in their name.

In each process that it dumps, and in each that it restores, code of CRIU writes into CRIU's log and maps memory. With
RLIMIT_FSIZE (`ulimit -f`) below the size of that log the kernel answers with SIGXFSZ, which waits until the process
goes on, and then kills it. With RLIMIT_AS or RLIMIT_DATA (`ulimit -v`, `-d`) there is no room for the code. So these
limits are lifted while all stand still, noted beside the images, which then have none, and set again before they run.

Hard limits are lifted with CAP_SYS_RESOURCE only. Root without it may lift soft ones, of processes whose real ids are
its own (prlimit(2), PERMISSIONS): a thread takes these on. A file that may not be as large as the log is refused then.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import platform
import resource
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from slurmckpt.capture import notes, procfs
from slurmckpt.capture.processes import Process, pod_processes

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
# By pid in the pod, and by kind (RLIMIT_*): the soft and the hard one.
Limits = dict[int, dict[int, tuple[int, int]]]

FILE = "rlimits.json"
# More than any log of CRIU's (seen: some 30 kB a process).
_LOG_BYTES = 1 << 30
_BOUNDS = {resource.RLIMIT_FSIZE: _LOG_BYTES, resource.RLIMIT_AS: None, resource.RLIMIT_DATA: None}
# (setresuid, setresgid) of the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl, uapi/asm-generic/unistd.h), as
# glibc's would change all threads.
_SYSCALLS = {"x86_64": (117, 119), "aarch64": (147, 149)}


class Lifted:
    """The limits of the processes of one pod, from lift() to lower(), both of which may be called again.

    real: the job's uid and gid, where root lacks CAP_SYS_RESOURCE.
    """

    def __init__(self, real: tuple[int, int] | None) -> None:
        self._real = real
        self._limits: list[tuple[Process, int, tuple[int, int]]] = []

    def lift(self, init_pid: int, images: Path) -> None:
        """While all stand still. Raises SlurmckptError when the pod is gone, OSError when no note can be made."""
        _by(self._real, self._lift, init_pid, images)

    def lower(self) -> None:
        """As they were. Before the processes run, where that is possible."""
        if self._limits:
            _by(self._real, self._lower)

    def _lift(self, init_pid: int, images: Path) -> None:
        found = [(process, *each) for process in pod_processes(init_pid) for each in _hindering(process)]
        if not found:
            return
        note: Limits = {}
        for process, kind, limits in found:
            note.setdefault(process.ns_pid, {})[kind] = limits
        notes.save(images / FILE, note)
        for process, kind, limits in found:
            self._limits.append((process, kind, limits))
            _set(process, kind, (resource.RLIM_INFINITY if self._real is None else limits[1],) * 2)

    def _lower(self) -> None:
        while self._limits:
            _set(*self._limits.pop())


def read(images: Path) -> Limits:
    """The limits of the processes of these images. Raises OSError or ValueError when the note cannot be read."""
    note = notes.load(images / FILE)
    if note is None:
        return {}
    try:
        return {
            int(number): {int(kind): (int(soft), int(hard)) for kind, (soft, hard) in limits.items()}
            for number, limits in note.items()
        }
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{FILE} is no note of limits") from error


def apply(init_pid: int, limits: Limits, real: tuple[int, int] | None) -> None:
    """Set them in the processes of a restored pod, which have not run yet. Raises SlurmckptError when it is gone."""
    if limits:
        _by(real, _apply, init_pid, limits)


def fixed(processes: Iterable[Process]) -> Iterator[tuple[Process, int]]:
    """Those that may write no file as large as CRIU's log, and how large one; where root cannot lift hard limits."""
    for process in processes:
        for line in (procfs.read_record(f"{procfs.PROC}/{process.pid}/limits") or b"").splitlines():
            words = line.decode().split()
            if words[:3] == ["Max", "file", "size"] and words[4].isdigit() and int(words[4]) < _LOG_BYTES:
                yield process, int(words[4])


def _apply(init_pid: int, limits: Limits) -> None:
    for process in pod_processes(init_pid):
        for kind, pair in limits.get(process.ns_pid, {}).items():
            _set(process, kind, pair)


def _hindering(process: Process) -> Iterator[tuple[int, tuple[int, int]]]:
    for kind, bound in _BOUNDS.items():
        try:
            soft, hard = resource.prlimit(process.pid, kind)
        except (ProcessLookupError, PermissionError):
            # Root's own, as CRIU beside them; what CRIU may not read itself it says.
            return
        if soft != resource.RLIM_INFINITY and (bound is None or soft < bound):
            yield kind, (soft, hard)


def _set(process: Process, kind: int, limits: tuple[int, int]) -> None:
    try:
        resource.prlimit(process.pid, kind, limits)
    except ProcessLookupError:
        pass
    except OSError as error:
        log.warning("the limit %d of %s cannot be set: %s", kind, process, error.strerror)


def _by(real: tuple[int, int] | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The work's result, done in a thread with these real ids where some are given."""
    if real is None:
        return work(*args, **kwargs)
    with ThreadPoolExecutor(1, initializer=_take_real_ids, initargs=real) as executor:
        return executor.submit(work, *args, **kwargs).result()


def _take_real_ids(uid: int, gid: int) -> None:
    """In the calling thread alone, which stays root otherwise. What the kernel refuses shows when a limit is set."""
    with contextlib.suppress(KeyError):
        setresuid, setresgid = _SYSCALLS[platform.machine()]
        libc = ctypes.CDLL(None)
        libc.syscall(setresgid, ctypes.c_int(gid), ctypes.c_int(-1), ctypes.c_int(-1))
        libc.syscall(setresuid, ctypes.c_int(uid), ctypes.c_int(-1), ctypes.c_int(-1))
