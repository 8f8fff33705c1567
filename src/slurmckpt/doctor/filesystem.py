"""On which file system a path lies."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from slurmckpt.capture.inspect.mounts import LOCAL_FILE_SYSTEMS


def kind(path: Path) -> str:
    """The type of the file system that holds `path`, as in /proc/mounts; "" when it cannot be told."""
    real = os.path.realpath(path)
    longest, found = -1, ""
    for mount in psutil.disk_partitions(all=True):
        inside = real == mount.mountpoint or real.startswith(mount.mountpoint.rstrip("/") + "/")
        # A later mount covers an earlier one at the same place.
        if inside and len(mount.mountpoint) >= longest:
            longest, found = len(mount.mountpoint), mount.fstype
    return found


def is_local(name: str) -> bool:
    """Whether file systems of this type belong to one node."""
    return name in LOCAL_FILE_SYSTEMS


def existing(path: Path) -> Path:
    """`path`, or the nearest directory above it that exists."""
    return next((place for place in (path, *path.parents) if place.exists()), Path("/"))
