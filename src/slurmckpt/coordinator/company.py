"""Whether the user of a job has other processes on this node: then what lies in /tmp may be theirs."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable

from slurmckpt.capture import procfs
from slurmckpt.coordinator.proc import parent_of

# How Slurm calls the cgroup of a step, in every release; that of its job is the one above.
_STEP = "/step_"
# What slurmstepd calls itself: "slurmstepd: [17.batch]" (setproctitle() in slurmstepd.c).
_STEPD = re.compile(rb"slurmstepd: \[(\d+)\.")


def is_alone(uid: int, init_pids: Iterable[int], pod_pids: Collection[int]) -> bool:
    """Whether all processes of this user here belong to one job. In doubt not.

    init_pids: pid 1 of its pods. pod_pids: the processes in them. As root.
    """
    inits = set(init_pids)
    jobs = set[str]().union(*(_jobs(pid) for pid in inits))
    # What stands for the sruns of the script are children of the coordinator.
    roots = {os.getpid(), *inits}
    for name in procfs.names(procfs.PROC):
        if not name.isdecimal() or int(name) in pod_pids:
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if os.stat(f"{procfs.PROC}/{name}").st_uid == uid and not _belongs(int(name), jobs, roots):
                return False
    return True


def _belongs(pid: int, jobs: set[str], roots: set[int]) -> bool:
    is_own = not roots.isdisjoint(_ancestors(pid)) or not jobs.isdisjoint(_jobs(pid))
    return is_own or procfs.link(f"{procfs.PROC}/{pid}/exe") is None  # it has ended


def _jobs(pid: int) -> set[str]:
    """Which jobs a process belongs to: by the cgroups of Slurm's, and by the slurmstepd that it comes from."""
    text = os.fsdecode(procfs.read(f"{procfs.PROC}/{pid}/cgroup") or b"")
    found = {line.partition(_STEP)[0] for line in text.splitlines() if _STEP in line}
    return found | {job for ancestor in _ancestors(pid) if (job := _title(ancestor))}


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    while (pid := parent_of(pid)) > 1 and pid not in found:
        found.append(pid)
    return found


def _title(pid: int) -> str:
    """The number of the job whose slurmstepd this process is; empty for any other process."""
    with contextlib.suppress(OSError):
        match = _STEPD.match(procfs.read(f"{procfs.PROC}/{pid}/cmdline") or b"")
        # Anybody may call himself so.
        if match and os.stat(f"{procfs.PROC}/{pid}").st_uid == 0:
            return match[1].decode()
    return ""
