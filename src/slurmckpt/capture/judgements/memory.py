"""Objects of the kernel's that look like files, on mounts of its own that no namespace shows."""

from __future__ import annotations

from collections.abc import Iterator

from slurmckpt.capture.inspect.descriptors import FileDescriptor
from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.judgements import shown
from slurmckpt.capture.processes import Process
from slurmckpt.capture.refusals import Reason

# What memfd_secret(2) has made, as /proc/PID/maps and /proc/PID/fd show it.
_SECRET = "/secretmem (deleted)"


def judge(seen: Inspection) -> Iterator[Reason]:
    """Secret memory and POSIX message queues."""
    for one in seen.descriptors.files:
        if is_secret(one, seen):
            yield _secret(one.holder.process)
        elif is_message_queue(one, seen) and one.path not in seen.queues:
            # It has lost its name; those that have one are another module's (`ipc`).
            yield Reason(
                one.holder.process,
                f"has a POSIX message queue open ({shown(one.path)}), which cannot be captured",
                "close it before a checkpoint, or use a pipe, a socket or a System V message queue",
            )
    disks = {mount.device for mount in seen.mounts.values()}
    for mappings in seen.mappings:
        if any(one.name == _SECRET and one.device not in disks for one in mappings.special):
            yield _secret(mappings.process)


def is_secret(one: FileDescriptor, seen: Inspection) -> bool:
    """Whether it is secret memory."""
    return one.mount not in seen.mounts and one.path == _SECRET


def is_message_queue(one: FileDescriptor, seen: Inspection) -> bool:
    """Whether it is a message queue of the pod's IPC namespace; one of another namespace is just from outside."""
    if one.mount in seen.mounts:
        return False
    return one.device in {mount.device for mount in seen.mounts.values() if mount.kind == "mqueue"}


def _secret(process: Process) -> Reason:
    return Reason(
        process,
        "has secret memory (memfd_secret), which nobody but itself can read",
        "keep the secret in ordinary memory, or release it before a checkpoint",
    )
