"""Objects for communication between processes that CRIU does not carry, or not as they are."""

from __future__ import annotations

from collections.abc import Iterator

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.judgements import shown
from slurmckpt.capture.judgements.memory import is_message_queue
from slurmckpt.capture.refusals import Reason


def judge(seen: Inspection) -> Iterator[Reason]:
    """POSIX message queues, semaphores with SEM_UNDO, event descriptors with EFD_SEMAPHORE, packet pipes."""
    open_ones = {one.path for one in seen.descriptors.files if is_message_queue(one, seen)}
    for name in seen.queues:
        # What is open is told with its holder (`memory`).
        if name not in open_ones:
            yield Reason(
                seen.processes[0],
                f"or another of its step has made the POSIX message queue {shown(name)}, which cannot be captured",
                "unlink it before a checkpoint, or use a System V queue, a pipe or a socket",
            )
    for one in seen.traits:
        if one.has_undo:
            yield Reason(
                one.process,
                "uses System V semaphores with SEM_UNDO, whose adjustments cannot be captured",
                "use them without SEM_UNDO, or use POSIX semaphores",
            )
    for descriptor in seen.descriptors.anonymous:
        if descriptor.kind == "eventfd" and procfs.fields(descriptor.information).get("eventfd-semaphore", "0") != "0":
            yield Reason(
                descriptor.holder.process,
                "holds an eventfd with EFD_SEMAPHORE, which a restore would make an ordinary one",
                "use an eventfd without EFD_SEMAPHORE, or a semaphore",
            )
    for holder in seen.descriptors.packet_pipes:
        yield Reason(
            holder.process,
            "holds a pipe in packet mode (O_DIRECT), which cannot be captured",
            "make the pipe without O_DIRECT, or use a socket pair",
        )
