"""Limits of this node that a restore would run into."""

from __future__ import annotations

from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.refusals import Reason
from slurmckpt.units import format_bytes

# choose_service_fd_base() in CRIU's servicefd.c: its own descriptors lie above the process's highest, and these with
# some room to spare end at a multiple of 128 below CRIU's limit.
_OWN = 16
_ROOM = 16
_STEP = 128


def judge(seen: Inspection) -> Iterator[Reason]:
    """Descriptors with numbers that leave CRIU no room for its own, and files too small for its log."""
    usable = seen.open_limit // _STEP * _STEP
    for holder in seen.descriptors.highest.values():
        if holder.descriptor + _OWN + _ROOM > usable:
            yield Reason(
                holder.process,
                f"has the descriptor {holder.descriptor} open, and a restore can use no more than {seen.open_limit} on"
                " this node",
                "open fewer, or let the administrator raise the limit of open files of slurmd (LimitNOFILE)",
            )
    for process, size in seen.small_files:
        yield Reason(
            process,
            f"may write no file larger than {format_bytes(size)} (ulimit -f), and would die of that at a checkpoint, as"
            " CRIU writes its log in the name of each process",
            "set the soft limit only (ulimit -S -f), since root here may not lift the hard one (no CAP_SYS_RESOURCE)",
        )
