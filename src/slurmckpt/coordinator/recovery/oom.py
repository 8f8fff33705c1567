"""Whether the kernel has killed tasks because their cgroup had no memory left.

Such a death is not recovered from: the limit stays the same, and Slurm declares the job OUT_OF_MEMORY in the end even
when everything else succeeds.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from slurmckpt.coordinator.cgroups import procs_files

# cgroup v1 and v2 (kernel: Documentation/admin-guide/cgroup-v1/memory.rst, cgroup-v2.rst): a line `oom_kill N`.
_FILES = ("memory.oom_control", "memory.events")


class OomKills:
    """The deaths for lack of memory in the cgroups of some processes since this was made."""

    def __init__(self, pids: Iterable[int]) -> None:
        """pids: processes on this node, of which some may be gone."""
        self._files: set[Path] = set()
        for pid in pids:
            try:
                self._files.update(file.parent / name for file in procs_files(pid) for name in _FILES)
            except OSError:
                continue
        self._before = self._count()

    def any(self) -> bool:
        """Whether there was one."""
        return self._count() > self._before

    def _count(self) -> int:
        total = 0
        for file in self._files:
            try:
                lines = file.read_text(encoding="ascii").splitlines()
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
        return total
