"""Descriptors of processes (pidfd_open(2)): of one in the pod, or of one that has ended, they come back."""

from __future__ import annotations

import os
from collections.abc import Iterator

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.judgements import CLOSE
from slurmckpt.capture.refusals import Reason

# Its value is that of O_EXCL (Linux include/uapi/linux/pidfd.h).
_PIDFD_THREAD = os.O_EXCL


def judge(seen: Inspection) -> Iterator[Reason]:
    """Those of processes outside the pod, and those of single threads."""
    pod = {process.pid for process in seen.processes}
    for one in seen.descriptors.anonymous:
        if one.kind != "pidfd":
            continue
        found = procfs.fields(one.information)
        try:
            pid, flags = int(found["Pid"]), int(found["flags"], 8)
        except (KeyError, ValueError):
            continue
        if flags & _PIDFD_THREAD:
            yield Reason(
                one.holder.process, "holds a descriptor of a single thread (a pidfd), which cannot be captured", CLOSE
            )
        elif pid not in pod and pid > 0:
            yield Reason(
                one.holder.process,
                f"holds a descriptor (a pidfd) of process {pid} outside the pod, which cannot be captured",
                CLOSE,
            )
