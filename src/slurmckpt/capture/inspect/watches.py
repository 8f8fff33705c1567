"""What inotify and fanotify descriptors of a pod watch: CRIU has to find it again by its file handle."""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import re
import struct
import termios
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.descriptors import Anonymous, Holder
from slurmckpt.capture.inspect.mounts import Mount

_KINDS = ("inotify", "fanotify")
# inotify_fdinfo() and show_mark_fhandle() in Linux fs/notify/fdinfo.c; marks of whole mounts have no inode.
_MARK = re.compile(
    rb"^(?:inotify|fanotify) .*?\bino:([0-9a-f]+) sdev:([0-9a-f]+) .*?"
    rb"(?:fhandle-bytes:([0-9a-f]+) fhandle-type:([0-9a-f]+) f_handle:([0-9a-f]+))?$",
    re.MULTILINE,
)
# Where CRIU searches for an inode whose handle leads nowhere: hints[] in its irmap.c, all that is below them, and /.
_SEARCHED = (
    *("/etc", "/var/spool", "/var/log", "/lib/udev"),
    *("/usr/share/dbus-1/services", "/usr/share/dbus-1/system-services"),
    *("/var/lib/polkit-1/localauthority", "/usr/share/polkit-1/actions"),
)
_MOST_SEARCHED = 50_000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Watched:
    """A descriptor with watches. kind: `inotify` or `fanotify`.

    lost: the types of the file systems on which it watches something that CRIU cannot find. unread: bytes of events
    that the program has not read yet.
    """

    holder: Holder
    kind: str
    lost: list[str]
    unread: int


def watches(init_pid: int, anonymous: Iterable[Anonymous], mounts: dict[int, Mount]) -> list[Watched]:
    """The descriptors with watches. Blocks while a file system does not answer. It needs CAP_DAC_READ_SEARCH."""
    found: list[Watched] = []
    for one in anonymous:
        if one.kind in _KINDS:
            lost = [mark.kind for mark in _marks(one.information, mounts) if not mark.is_found(init_pid)]
            found.append(Watched(one.holder, one.kind, lost, _unread(one.holder)))
    return found


@dataclass(frozen=True)
class _Mark:
    device: int
    inode: int
    handle: tuple[int, bytes] | None
    mounts: list[Mount]

    @property
    def kind(self) -> str:
        return self.mounts[0].kind if self.mounts else "?"

    def is_found(self, init_pid: int) -> bool:
        """As check_open_handle() in CRIU's fsnotify.c does it."""
        root = f"{procfs.PROC}/{init_pid}/root"
        opened = any(self._opens(root + mount.point) for mount in self.mounts)
        return opened or (self.device, self.inode) in _searched(root)

    def _opens(self, point: str) -> bool:
        if self.handle is None:
            return False
        kind, content = self.handle
        try:
            mount = os.open(point, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            handle = ctypes.create_string_buffer(struct.pack("=Ii", len(content), kind) + content)
            opened = int(_libc.open_by_handle_at(mount, handle, os.O_PATH | os.O_CLOEXEC))
            if opened >= 0:
                os.close(opened)
            # Without the right to ask, nothing is known, and CRIU has the last word.
            return opened >= 0 or ctypes.get_errno() == errno.EPERM
        finally:
            os.close(mount)


def _marks(information: bytes, mounts: dict[int, Mount]) -> Iterator[_Mark]:
    for match in _MARK.finditer(information):
        # The kernel's own dev_t: include/linux/kdev_t.h.
        number = int(match[2], 16)
        major, minor = number >> 20, number & 0xFFFFF
        here = [mount for mount in mounts.values() if mount.device == f"{major}:{minor}"]
        handle = (int(match[4], 16), bytes.fromhex(match[5].decode("ascii"))) if match[5] else None
        # A program of the user's answers for FUSE, or does not.
        if not any(mount.is_fuse for mount in here):
            yield _Mark(os.makedev(major, minor), int(match[1], 16), handle, here)


def _searched(root: str) -> set[tuple[int, int]]:
    """Device and inode of all that CRIU would look at."""
    found: set[tuple[int, int]] = set()
    todo = [f"{root}/.", *(root + path for path in _SEARCHED)]
    while todo and len(found) < _MOST_SEARCHED:
        path = todo.pop()
        try:
            status = os.lstat(path)
            found.add((status.st_dev, status.st_ino))
            if path != f"{root}/.":
                with os.scandir(path) as entries:
                    todo += [entry.path for entry in entries]
        except OSError:
            continue
    return found


def _unread(holder: Holder) -> int:
    """Bytes of events that wait to be read; 0 when the descriptor has gone."""
    try:
        pidfd = os.pidfd_open(holder.process.pid)
        try:
            descriptor = procfs.borrow_descriptor(pidfd, holder.descriptor)
        finally:
            os.close(pidfd)
        try:
            waiting = array.array("i", [0])
            fcntl.ioctl(descriptor, termios.FIONREAD, waiting)
            return waiting[0]
        finally:
            os.close(descriptor)
    except OSError:
        return 0
