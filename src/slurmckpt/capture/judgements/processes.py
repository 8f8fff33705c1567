"""What processes are in the middle of."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.refusals import Reason


def judge(seen: Inspection) -> Iterator[Reason]:
    """Processes that are being traced: a process has one tracer, and CRIU must be it. And what it would not restore."""
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
        if one.end_signal is not None:
            yield Reason(
                one.process,
                f"has {_signal(one.end_signal)} sent to its parent at its end and not SIGCHLD (clone), which a restore"
                " would not give back",
                "let it execute a program of its own, or end it before a checkpoint",
            )
        if one.lost_main:
            yield Reason(
                one.process,
                "has threads that run on after its first thread has ended (pthread_exit), which cannot be captured",
                "let the first thread wait for the others",
            )
        if one.own_files:
            yield Reason(
                one.process,
                "has a thread with open files of its own (unshare), which cannot be captured",
                "use a process in its place, or end it before a checkpoint",
            )
        if one.own_directory:
            yield Reason(
                one.process,
                "has a thread with a working directory and umask of its own (unshare), which cannot be captured",
                "use a process in its place, or end it before a checkpoint",
            )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if number else "no signal"


def notes(seen: Inspection) -> Iterator[str]:
    """What may make the dump slow or fail, but need not."""
    for process in seen.processes:
        if process.state == "D":
            yield f"{process} waits for a device or a file system (state D)"
