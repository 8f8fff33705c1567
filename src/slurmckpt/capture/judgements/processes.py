"""What processes are in the middle of."""

from __future__ import annotations

from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.refusals import Reason


def judge(seen: Inspection) -> Iterator[Reason]:
    """Processes that are being traced: a process has one tracer, and CRIU must be it. And other personalities."""
    for process in seen.processes:
        if process.pid in seen.tracers:
            yield Reason(
                process, f"is being traced by {seen.tracers[process.pid]}", "detach the debugger or tracer first"
            )
    for one in seen.traits:
        if one.personality is not None:
            yield Reason(
                one.process,
                f"has the personality {one.personality:#x} (setarch), which a restore would not give back",
                "start it without setarch",
            )


def notes(seen: Inspection) -> Iterator[str]:
    """What may make the dump slow or fail, but need not."""
    for process in seen.processes:
        if process.state == "D":
            yield f"{process} waits for a device or a file system (state D)"
