"""Which processes may have CUDA state. The driver knows for certain, but each question costs a call into it."""

from __future__ import annotations

from collections.abc import Iterable

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.mappings import MAPS_BYTES

_LIBRARY = b"/libcuda.so"
_DEVICE = "/dev/nvidia"


def candidates(pids: Iterable[int]) -> list[int]:
    """Those of `pids` (of this node) that have libcuda mapped, or a device of NVIDIA's open.

    A checkpointed process has no device open. Blocks as a look at /proc does: call it in a thread.
    """
    return [pid for pid in pids if _maps_library(pid) or holds_device(pid)]


def _maps_library(pid: int) -> bool:
    return _LIBRARY in (procfs.read(f"{procfs.PROC}/{pid}/maps", MAPS_BYTES) or b"")


def holds_device(pid: int) -> bool:
    """Whether a process has a device of NVIDIA's open."""
    directory = f"{procfs.PROC}/{pid}/fd"
    return any((procfs.link(f"{directory}/{name}") or "").startswith(_DEVICE) for name in procfs.names(directory))
