"""The mounts of a pod, from /proc/PID/mountinfo (proc_pid_mountinfo(5))."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from slurmckpt.capture import procfs

_MOUNTINFO_BYTES = 64 << 20
_OF_POD_INIT = ("/dev/shm",)

# File systems whose files are views of the kernel: they have no content that a checkpoint could lose.
KERNEL_FILE_SYSTEMS = frozenset(
    {
        "bpf",
        "binfmt_misc",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "efivarfs",
        "fusectl",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "resctrl",
        "securityfs",
        "selinuxfs",
        "sysfs",
        "tracefs",
    }
)

# Those that belong to one node; everything else may be shared (nfs, lustre, gpfs, beegfs, ceph, fuse.*, 9p, ...).
LOCAL_FILE_SYSTEMS = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs"}
)


@dataclass(frozen=True)
class Mount:
    """kind: type of the file system. device: `MAJOR:MINOR` in decimal. point: where it is mounted."""

    kind: str
    device: str
    point: str = ""

    @property
    def is_fuse(self) -> bool:
        """Whether the content of its files is made up by a program."""
        return self.kind == "fuse" or self.kind.startswith("fuse.")


def mounts_of(pid: int) -> dict[int, Mount]:
    """The mounts of the mount namespace of a process, by id. Empty when the process has gone."""
    try:
        text = procfs.read(f"{procfs.PROC}/{pid}/mountinfo", _MOUNTINFO_BYTES)
    except OSError as error:
        if error.errno == errno.EINVAL:  # it has ended, and was not waited for
            return {}
        raise
    return parse_mountinfo(text or b"")


def parse_mountinfo(text: bytes) -> dict[int, Mount]:
    """The mounts by id.

    The kernel writes blanks, newlines and backslashes of paths as octal, so that no mount point can add a line or a
    field. The optional fields end with a single `-`; the type is the field after it.
    """
    found: dict[int, Mount] = {}
    for line in text.split(b"\n"):
        words = line.split(b" ")
        try:
            separator = words.index(b"-", 6)
            kind, device = words[separator + 1].decode(errors="replace"), words[2].decode(errors="replace")
            found[int(words[0])] = Mount(kind, device, _unescaped(words[4]))
        except (ValueError, IndexError):
            continue
    return found


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that holds this path; None when none does."""
    found = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        # A later mount covers an earlier one at the same place.
        if inside and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def made_inside(pod: dict[int, Mount], outside: dict[int, Mount]) -> set[int]:
    """The ids of those mounts of a pod whose file systems are not mounted in the namespace that it was made from.

    outside: the mounts there, empty when they are not known. What pod init itself has mounted does not count.
    """
    devices = {mount.device for mount in outside.values()}
    return {
        number
        for number, mount in pod.items()
        if outside
        and mount.device not in devices
        and mount.kind not in KERNEL_FILE_SYSTEMS
        and mount.point not in _OF_POD_INIT
    }


def _unescaped(path: bytes) -> str:
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8) & 0xFF]), path))
