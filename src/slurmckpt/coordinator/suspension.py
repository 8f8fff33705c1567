"""Whether Slurm has suspended the job (`scontrol suspend`, gang scheduling): then nothing in its pods can move.

slurmstepd first sends SIGTSTP, waits (PreemptParameters=suspend_grace_time, 2 s), and then stops everything: with
proctrack/cgroup by freezing the step's cgroup, with proctrack/linuxproc by SIGSTOP to each process below it (req.c,
_handle_suspend; proctrack_cgroup.c and kill_tree.c). It tells nobody, so this is found by looking.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from slurmckpt.coordinator.step import Step


def suspended(steps: Iterable[Step], proc: Path = Path("/proc")) -> bool:
    """Whether a running step is suspended, as far as the kernel shows it now, or is just about to be."""
    return any(
        step.running
        and step.pod is not None
        and (step.pod.stopping or any(map(_is_frozen, step.pod.cgroups)) or is_stopped(proc / str(step.shim)))
        for step in steps
    )


def _is_frozen(procs_file: Path) -> bool:
    """Whether the cgroup is frozen, or is being frozen, by itself or with one above it.

    freezer.state: cgroup v1, freezer-subsystem.rst. cgroup.freeze, cgroup.events: cgroup v2, cgroup-v2.rst.
    """
    with contextlib.suppress(OSError):
        return procs_file.with_name("freezer.state").read_text(encoding="ascii").strip() != "THAWED"
    with contextlib.suppress(OSError):
        if procs_file.with_name("cgroup.freeze").read_text(encoding="ascii").strip() == "1":
            return True
        return "frozen 1" in procs_file.with_name("cgroup.events").read_text(encoding="ascii").splitlines()
    return False


def is_stopped(process: Path) -> bool:
    """Whether the process of this directory of /proc was stopped by a signal, and not continued since."""
    with contextlib.suppress(OSError):
        # "pid (name) state ...", and the name may hold anything.
        stat = (process / "stat").read_bytes()
        return stat.rpartition(b")")[2].split()[:1] == [b"T"]
    return False
