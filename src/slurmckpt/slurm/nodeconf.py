"""What this node's copies of Slurm's configuration files say: for what must be known before Slurm could be asked.

Read as Slurm's parser reads them (parse_config.c): keys and values in any case, blanks around "=", "#" begins a
comment, the last one counts. `Include` is not followed.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

# Where Slurm's programs look for slurm.conf, in this order (slurm.conf(5), "configless"); cgroup.conf lies beside it.
_DIRECTORIES = (Path("/etc/slurm"), Path("/run/slurm/conf"))
_TRUE = frozenset({"yes", "up", "true", "1"})  # s_p_handle_boolean


def signals_children() -> bool:
    """Whether proctrack/cgroup sends a step's signals to all of its processes, not to its tasks alone.

    False, Slurm's default, when no cgroup.conf can be read.
    """
    return _value("cgroup.conf", "SignalChildrenProcesses") in _TRUE


def preempts_by_parents() -> bool:
    """Whether jobs can be preempted here and proctrack/linuxproc then signals every process below a slurmstepd.

    False when no slurm.conf can be read.
    """
    preemption = _value("slurm.conf", "PreemptType").removeprefix("preempt/")
    return _value("slurm.conf", "ProctrackType") == "proctrack/linuxproc" and preemption not in ("", "none")


def _value(file: str, key: str) -> str:
    """The value in lower case; empty when there is none."""
    own = os.environ.get("SLURM_CONF")
    for directory in ([Path(own).parent] if own else []) + list(_DIRECTORIES):
        with contextlib.suppress(OSError):
            text = (directory / file).read_text(encoding="utf-8", errors="replace")
            found: list[str] = re.findall(rf'^\s*{key}\s*=\s*"?([\w/]+)', text, re.IGNORECASE | re.MULTILINE)
            return found[-1].lower() if found else ""
    return ""
