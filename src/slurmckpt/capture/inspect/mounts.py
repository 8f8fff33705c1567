"""The mounts of a pod, from /proc/PID/mountinfo (proc_pid_mountinfo(5))."""

from __future__ import annotations

from dataclasses import dataclass

from slurmckpt.capture import procfs

_MOUNTINFO_BYTES = 64 << 20

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


@dataclass(frozen=True)
class Mount:
    """kind: type of the file system. device: `MAJOR:MINOR` in decimal."""

    kind: str
    device: str

    @property
    def is_fuse(self) -> bool:
        """Whether the content of its files is made up by a program."""
        return self.kind == "fuse" or self.kind.startswith("fuse.")


def mounts_of(pid: int) -> dict[int, Mount]:
    """The mounts of the mount namespace of a process, by id. Empty when the process has gone."""
    return parse_mountinfo(procfs.read(f"{procfs.PROC}/{pid}/mountinfo", _MOUNTINFO_BYTES) or b"")


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
            kind, device = words[separator + 1], words[2]
            found[int(words[0])] = Mount(kind.decode(errors="replace"), device.decode(errors="replace"))
        except (ValueError, IndexError):
            continue
    return found
