"""What the kernel has to undo of System V semaphores when a process ends (SEM_UNDO, semop(2)).

It shows that to nobody. So our plugin of CRIU's (pod/undo.c) has each process find it out by calls that fail, notes it
beside the images, and sets it again at a restore. Here is looked at how that went.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

FILE, FAILED = "semaphore-undo", "semaphore-undo.failed"


def is_carried() -> bool:
    """Whether the plugin can do it on a machine like this one."""
    return platform.machine() == "x86_64"


def unknown(images: Path, names: Mapping[int, str]) -> str:
    """Why this dump is not whole, as a sentence; empty when it is. names: of processes, by their pids in the pod.

    Raises OSError when the note cannot be read.
    """
    try:
        lines = (images / FILE).read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return ""
    for line in lines:
        pid, what = line.split()[:2]
        if what == "?":
            name = names.get(int(pid), f"process {pid}")
            return f"what semaphores have to undo for {name} (SEM_UNDO) cannot be found out: use them without SEM_UNDO"
    return ""


def has_failed(images: Path) -> bool:
    """Whether a restore from these images could not set it again."""
    return (images / FAILED).exists()
