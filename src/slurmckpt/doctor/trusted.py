"""What root runs or believes must be such that only root can change it."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def fault(path: Path, executable: bool = False) -> str:
    """Why root must not rely on the file `path`, as the end of a sentence about it; empty when it may.

    Checked are the file that links lead to, and every directory above it, up to the root.
    """
    try:
        real = path.resolve(strict=True)
        status = real.stat()
    except OSError as error:
        return _unseen(error)
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if executable and not status.st_mode & 0o111:
        return f"is not executable (mode {stat.S_IMODE(status.st_mode):04o})"
    # Where a link leads, and where it lies.
    return _changeable(status) or directory_fault(real.parent) or directory_fault(path.parent)


def directory_fault(path: Path) -> str:
    """Why others than root could replace what lies in the directory `path`, as the end of a sentence; empty: nobody."""
    try:
        real = path.resolve(strict=True)
        for directory in (real, *real.parents):
            status = directory.stat()
            # Sticky directories of root (/tmp): others cannot rename what is not theirs.
            if status.st_uid == 0 and status.st_mode & stat.S_ISVTX and directory != real:
                continue
            if found := _changeable(status):
                return f"lies in {directory}, which {found}" if directory != real else found
    except OSError as error:
        return _unseen(error)
    return ""


def unreadable(path: Path) -> str:
    """Why users and SlurmUser cannot read the file `path`, as the end of a sentence; empty when they can."""
    try:
        real = path.resolve(strict=True)
        mode = real.stat().st_mode
        if not mode & stat.S_IROTH:
            return f"cannot be read by other users (mode {stat.S_IMODE(mode):04o})"
        for directory in real.parents:
            mode = directory.stat().st_mode
            if not mode & stat.S_IXOTH:
                return f"lies in {directory}, which other users cannot enter (mode {stat.S_IMODE(mode):04o})"
    except OSError as error:
        return _unseen(error)
    return ""


def _changeable(status: os.stat_result) -> str:
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != 0:
        return f"is owned by uid {status.st_uid}, not by root"
    # Some distributions have directories of the group root writable.
    if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and status.st_gid != 0):
        return f"can be written by others than root (mode {mode:04o})"
    return ""


def _unseen(error: OSError) -> str:
    return "is missing" if isinstance(error, FileNotFoundError) else f"cannot be seen: {error.strerror}"
