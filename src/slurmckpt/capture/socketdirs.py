"""Unix sockets that are bound in a directory of the user's own, such as those of Python's multiprocessing in /tmp.

At a restore CRIU, as root, makes such a socket at its path and changes its owner there, by name. If the user could
change the directory meanwhile, a link might stand in its place, or in that of the socket. So the directory belongs to
root alone for that moment. That is possible where nobody but root can rename it then: in a directory like /tmp, which
is root's and has the sticky bit.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from slurmckpt.capture import notes, procfs
from slurmckpt.errors import Refused

FILE = "socket-directories.json"
# How many have taken a directory, by device and inode: one coordinator restores all pods of its job.
_takers: dict[tuple[int, int], int] = {}
_lock = threading.Lock()
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class OwnDirectory:
    """path: absolute, inside the pod. mode: permission bits."""

    path: str
    uid: int
    gid: int
    mode: int


def find(init_pid: int, directory: str, uid: int) -> OwnDirectory | None:
    """The directory, when it can be taken from its user at a restore. init_pid: on this node. uid: of the user."""
    with contextlib.suppress(OSError, Refused), _parent(init_pid, directory) as parent:
        status = os.stat(os.path.basename(directory), dir_fd=parent, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode) and status.st_uid == uid:
            return OwnDirectory(directory, status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))
    return None


def save(directories: Sequence[OwnDirectory], images: Path) -> None:
    """Note them beside the images; nothing when there are none. Raises OSError."""
    if directories:
        notes.save(images / FILE, [asdict(one) for one in directories])


def take(init_pid: int, images: Path) -> contextlib.ExitStack:
    """Have the directories of these images there, and root's until the stack that is returned is closed.

    Raises Refused or OSError.
    """
    note = notes.load(images / FILE) or []
    with contextlib.ExitStack() as stack:
        for each in note:
            stack.enter_context(_taken(init_pid, OwnDirectory(**each)))
        return stack.pop_all()


@contextlib.contextmanager
def _taken(init_pid: int, one: OwnDirectory) -> Iterator[None]:
    name = os.path.basename(one.path)
    with _parent(init_pid, one.path) as parent, contextlib.ExitStack() as stack:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
            # Nobody but root can have put something else in its place meanwhile.
            os.chown(name, one.uid, one.gid, dir_fd=parent, follow_symlinks=False)
        try:
            directory = os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError as error:
            raise Refused(f"{one.path}, where a unix socket is bound, cannot be opened: {error.strerror}") from error
        stack.callback(os.close, directory)
        stack.enter_context(_roots(directory, one))
        there = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not os.path.samestat(there, os.fstat(directory)):
            raise Refused(f"{one.path}, where a unix socket is bound, was replaced meanwhile")
        yield


@contextlib.contextmanager
def _roots(directory: int, one: OwnDirectory) -> Iterator[None]:
    """It is root's meanwhile. Pods of the same job that are restored at the same time may share it."""
    status = os.fstat(directory)
    key = (status.st_dev, status.st_ino)
    with _lock:
        if key not in _takers:
            if status.st_uid != one.uid:
                raise Refused(f"{one.path}, where a unix socket is bound, belongs to somebody else on this node")
            # The owner first: nobody but root can change the mode afterwards, or rename what is not his (sticky bit).
            os.fchown(directory, 0, 0)
            os.fchmod(directory, 0o700)
        _takers[key] = _takers.get(key, 0) + 1
    try:
        yield
    finally:
        with _lock:
            _takers[key] -= 1
            if not _takers[key]:
                del _takers[key]
                os.fchmod(directory, one.mode)
                os.fchown(directory, one.uid, one.gid)


@contextlib.contextmanager
def _parent(init_pid: int, path: str) -> Iterator[int]:
    """A descriptor of the directory that `path` lies in, as the pod sees it.

    Raises Refused unless it is shared as /tmp is, and all on the way to it are root's. Raises OSError.
    """
    with contextlib.ExitStack() as stack:
        current = os.open(f"{procfs.PROC}/{init_pid}/root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, current)
        status = os.fstat(current)
        for part in [each for each in os.path.dirname(path).split("/") if each]:
            _check_root_only(status, path)
            current = os.open(part, _DIRECTORY, dir_fd=current)
            stack.callback(os.close, current)
            status = os.fstat(current)
        _check_root_only(status, path)
        if not status.st_mode & stat.S_ISVTX or not status.st_mode & stat.S_IWOTH:
            raise Refused(f"{path}, where a unix socket is bound, does not lie in a directory that all users share")
        yield current


def _check_root_only(status: os.stat_result, path: str) -> None:
    shared = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
    if status.st_uid != 0 or shared:
        raise Refused(f"a directory on the way to {path}, where a unix socket is bound, can be changed by users")
