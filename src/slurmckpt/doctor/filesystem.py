"""On which file system a path lies."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

# Those that belong to one node; everything else may be shared (nfs, lustre, gpfs, beegfs, ceph, fuse.*, 9p, ...).
_LOCAL = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs"}
)


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
    return name in _LOCAL


def existing(path: Path) -> Path:
    """`path`, or the nearest directory above it that exists."""
    return next((place for place in (path, *path.parents) if place.exists()), Path("/"))
