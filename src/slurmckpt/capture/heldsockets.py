"""The sockets of a pod's processes, one at a time, as descriptors of ours (pidfd_getfd(2))."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator

from slurmckpt.capture import procfs
from slurmckpt.capture.processes import Process


def all_of(processes: Iterable[Process]) -> Iterator[tuple[str, socket.socket]]:
    """Each socket once, and open for a moment, with the key under which `named` finds it: `PID/FD` inside the pod."""
    seen: set[str] = set()
    for process in processes:
        directory = f"{procfs.PROC}/{process.pid}/fd"
        for number in procfs.names(directory):
            target = procfs.link(f"{directory}/{number}") or ""
            if not target.startswith("socket:") or target in seen:
                continue
            seen.add(target)
            with contextlib.suppress(OSError), borrowed(process.pid, int(number)) as one:
                yield f"{process.ns_pid}/{number}", one


def named(processes: Iterable[Process], keys: Iterable[str]) -> Iterator[tuple[str, socket.socket]]:
    """Those of these keys, each open for a moment; what is not there is left out."""
    pids = {process.ns_pid: process.pid for process in processes}
    for key in keys:
        pid, number = map(int, key.split("/"))
        if pid in pids:
            with contextlib.suppress(OSError), borrowed(pids[pid], number) as one:
                yield key, one


@contextlib.contextmanager
def borrowed(pid: int, number: int) -> Iterator[socket.socket]:
    """The socket behind a descriptor of another process, until the end of the block. Raises OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        descriptor = procfs.borrow_descriptor(pidfd, number)
    finally:
        os.close(pidfd)
    with socket.socket(fileno=descriptor) as one:
        yield one
