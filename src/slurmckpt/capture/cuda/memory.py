"""Whether what the ranks have on their GPUs fits into their memory limit: a checkpoint copies it into their memory.

Without this look the kernel would kill a rank in the middle of the copy. cgroup v1 and v2 (kernel:
Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slurmckpt.errors import SlurmckptError
from slurmckpt.units import format_bytes

# A v1 limit that nobody has set is LONG_MAX rounded down to a page.
_UNLIMITED = 1 << 60
# Page tables of the copy, and what the ranks allocate while it is made.
_MARGIN = 64 << 20
# Slurm's unit M.
_MIB = 1 << 20


@dataclass(frozen=True)
class Room:
    """limit, free: bytes, of the group that has the least left. where: its directory."""

    limit: int
    free: int
    where: Path


class NoRoom(SlurmckptError):
    """The GPU memory of the ranks does not fit into the job's memory limit."""


def check(needed: int, cgroups: Iterable[Path], available: int) -> None:
    """Raises NoRoom when `needed` bytes of GPU memory do not fit.

    cgroups: directories of the ranks' memory cgroups. available: bytes of memory that the node has left.
    """
    if needed == 0:
        return
    wanted = needed + _MARGIN
    if wanted > available:
        raise NoRoom(
            f"the ranks have {format_bytes(needed)} on their GPUs, which a checkpoint copies into host memory, and the"
            f" node has {format_bytes(available)} left"
        )
    for place in cgroups:
        found = room(place)
        if found is not None and wanted > found.free:
            raise NoRoom(
                f"the ranks have {format_bytes(needed)} on their GPUs, which a checkpoint copies into the job's memory,"
                f" and of its limit of {format_bytes(found.limit)} only {format_bytes(found.free)} are left: ask for"
                f" {-(-(wanted - found.free) // _MIB)}M more with --mem"
            )


def room(group: Path) -> Room | None:
    """The tightest limit of a memory cgroup and those above it; None when there is none."""
    found: list[Room] = []
    for place in [group, *group.parents]:
        one = _room(place)
        if one is not None:
            found.append(one)
        elif not (place / "cgroup.procs").exists():
            break
    return min(found, key=lambda one: one.free, default=None)


def available() -> int:
    """Bytes of memory that this node could give out (MemAvailable of proc_meminfo(5))."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _UNLIMITED


def _room(place: Path) -> Room | None:
    for limit_file, usage_file in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit, usage = _number(place / limit_file), _number(place / usage_file)
        if limit is not None and usage is not None and limit < _UNLIMITED:
            # File cache that nobody uses is dropped before anything is killed.
            return Room(limit, max(0, limit - max(0, usage - _unused_cache(place))), place)
    return None


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None  # not there, or `max`


def _unused_cache(place: Path) -> int:
    try:
        lines = (place / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    fields = dict(line.split(" ", 1) for line in lines if " " in line)
    return int(fields.get("total_inactive_file", fields.get("inactive_file", "0")))
