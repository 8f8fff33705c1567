"""Limits of this node that a restore would run into."""

from __future__ import annotations

from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.refusals import Reason

# choose_service_fd_base() in CRIU's servicefd.c: its own descriptors lie above the process's highest, and these with
# some room to spare end at a multiple of 128 below CRIU's limit.
_OWN = 16
_ROOM = 16
_STEP = 128


def judge(seen: Inspection) -> Iterator[Reason]:
    """Descriptors with numbers that leave CRIU no room for its own while it restores the process."""
    usable = seen.open_limit // _STEP * _STEP
    for holder in seen.descriptors.highest.values():
        if holder.descriptor + _OWN + _ROOM > usable:
            yield Reason(
                holder.process,
                f"has the descriptor {holder.descriptor} open, and a restore can use no more than {seen.open_limit} on"
                " this node",
                "open fewer, or let the administrator raise the limit of open files of slurmd (LimitNOFILE)",
            )
