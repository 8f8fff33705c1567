"""Which srun a batch script will use: the first in its PATH that its user cannot change."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def find_srun(environment: Iterable[bytes], uid: int, groups: Collection[int]) -> Path | None:
    """The real path of srun, or None when there is none that a stand-in may take the place of.

    groups: all that the user is in.
    The stand-in is mounted over it by root. A file that the job's user can replace, or that lies in a directory of his,
    could become any other file of the node by then.
    """
    path = next((entry[5:] for entry in environment if entry.startswith(b"PATH=")), _DEFAULT_PATH.encode())
    for directory in os.fsdecode(path).split(":"):
        if not directory.startswith("/"):
            continue
        candidate = Path(directory, "srun")
        try:
            real = Path(os.path.realpath(candidate, strict=True))
            if not stat.S_ISREG(real.stat().st_mode) or not os.access(real, os.X_OK):
                continue
            changeable = any(_may_change(part.stat(), uid, groups) for part in (real, *real.parents))
        except OSError:
            continue
        return None if changeable or ":" in str(real) else real
    return None


def _may_change(status: os.stat_result, uid: int, groups: Collection[int]) -> bool:
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    writable = status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and status.st_gid in groups)
    return status.st_uid == uid or bool(writable and not sticky)
