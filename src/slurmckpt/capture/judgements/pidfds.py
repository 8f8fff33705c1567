"""Descriptors of processes (pidfd_open(2)): of one in the pod, or of one that has ended, they come back."""

from __future__ import annotations

from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.judgements import CLOSE
from slurmckpt.capture.refusals import Reason


def judge(seen: Inspection) -> Iterator[Reason]:
    """Those of processes outside the pod, and those of single threads."""
    for one in seen.pidfds:
        if one.is_thread:
            yield Reason(
                one.holder.process, "holds a descriptor of a single thread (a pidfd), which cannot be captured", CLOSE
            )
        elif one.is_outside:
            yield Reason(
                one.holder.process,
                f"holds a descriptor (a pidfd) of process {one.pid} outside the pod, which cannot be captured",
                CLOSE,
            )
