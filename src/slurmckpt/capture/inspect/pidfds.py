"""Descriptors of processes (pidfd_open(2)): of whom they are."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.descriptors import Anonymous, Holder
from slurmckpt.capture.processes import descends

# Its value is that of O_EXCL (Linux include/uapi/linux/pidfd.h).
_PIDFD_THREAD = os.O_EXCL


@dataclass(frozen=True)
class Pidfd:
    """pid: on this node, not above 0 of one that has ended. is_thread: of a single thread. is_outside: the pod."""

    holder: Holder
    pid: int
    is_thread: bool
    is_outside: bool


def pidfds(anonymous: Iterable[Anonymous], pod: Collection[int], leader: int) -> Iterator[Pidfd]:
    """Those among these descriptors. pod: the pids of its processes; some may have been born since, below `leader`."""
    for one in anonymous:
        if one.kind != "pidfd":
            continue
        found = procfs.fields(one.information)
        try:
            pid, flags = int(found["Pid"]), int(found["flags"], 8)
        except (KeyError, ValueError):
            continue
        is_outside = pid > 0 and pid not in pod and not descends(pid, leader)
        yield Pidfd(one.holder, pid, bool(flags & _PIDFD_THREAD), is_outside)
