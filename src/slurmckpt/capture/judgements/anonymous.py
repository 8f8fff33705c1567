"""Kernel objects without a path: those that CRIU knows, and all others."""

from __future__ import annotations

from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.judgements import CLOSE
from slurmckpt.capture.processes import Process
from slurmckpt.capture.refusals import Reason
from slurmckpt.errors import one_line

# dump_one_file() in CRIU's files.c
_KNOWN = frozenset({"eventfd", "eventpoll", "fanotify", "inotify", "pidfd", "signalfd", "timerfd"})
_REMEDIES = {
    "perf_event": "stop the profiler before a checkpoint",
    "userfaultfd": "close it before a checkpoint, or start the program without userfaultfd",
    "bpf-map": "unload the BPF program before a checkpoint",
    "bpf-prog": "unload the BPF program before a checkpoint",
    "bpf_link": "unload the BPF program before a checkpoint",
    "kvm-vm": "end the virtual machine before a checkpoint",
    "kvm-vcpu": "end the virtual machine before a checkpoint",
}


def judge(seen: Inspection) -> Iterator[Reason]:
    """Descriptors of other kinds, and rings of io_uring, of which a mapping may be all that is left."""
    for one in seen.descriptors.anonymous:
        if one.kind == "io_uring":
            yield _ring(one.holder.process)
        elif one.kind not in _KNOWN:
            # The kernel puts the number of a virtual processor behind its kind.
            kind = one.kind.partition(":")[0]
            yield Reason(
                one.holder.process,
                f"holds a descriptor of the kind {one_line(kind, 40)}, which cannot be captured",
                _REMEDIES.get(kind, CLOSE),
            )
    for mappings in seen.mappings:
        if any(one.name == "anon_inode:[io_uring]" for one in mappings.special):
            yield _ring(mappings.process)


def _ring(process: Process) -> Reason:
    return Reason(
        process,
        "uses io_uring, which cannot be captured",
        'let slurmckpt deny it (io_uring = "deny", programs fall back to epoll), or set USE_LIBUV=0 for PyTorch',
    )
