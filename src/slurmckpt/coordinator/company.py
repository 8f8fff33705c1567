"""Whether the user of a job has other processes on this node: then what lies in /tmp may be theirs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable

from slurmckpt.capture import procfs
from slurmckpt.coordinator.proc import parent_of

_STEPD = "slurmstepd"
# Slurm calls the cgroup of a step so, in every release; that of its job is the one above.
_STEP = "/step_"


def is_alone(uid: int, init_pids: Iterable[int], pod_pids: Collection[int]) -> bool:
    """Whether all processes of this user here belong to one job. In doubt not.

    init_pids: pid 1 of its pods. pod_pids: the processes in them. As root.
    """
    inits = set(init_pids)
    jobs = set().union(*(_jobs(pid) for pid in inits))
    # What stands for the sruns of the script are children of the coordinator.
    roots = {os.getpid(), *inits, *(pid for init in inits for pid in _ancestors(init) if _is_stepd(pid))}
    for name in procfs.names(procfs.PROC):
        if not name.isdecimal() or int(name) in pod_pids:
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if os.stat(f"{procfs.PROC}/{name}").st_uid == uid and not _belongs(int(name), jobs, roots):
                return False
    return True


def _belongs(pid: int, jobs: set[str], roots: set[int]) -> bool:
    return bool(_jobs(pid) & jobs) or not roots.isdisjoint(_ancestors(pid)) or not os.path.exists(f"/proc/{pid}")


def _jobs(pid: int) -> set[str]:
    """The cgroups of the jobs that a process is in; empty where Slurm makes none."""
    text = os.fsdecode(procfs.read(f"{procfs.PROC}/{pid}/cgroup") or b"")
    return {line.partition(_STEP)[0] for line in text.splitlines() if _STEP in line}


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    while (pid := parent_of(pid)) > 1 and pid not in found:
        found.append(pid)
    return found


def _is_stepd(pid: int) -> bool:
    return (procfs.read(f"{procfs.PROC}/{pid}/comm") or b"").startswith(_STEPD.encode())
