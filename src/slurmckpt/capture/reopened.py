"""What CRIU opened by path at a restore, as root, must be what the job's user may open.

Between dump and restore the user can put a link in the place of a directory. So before the restored processes run,
every file, directory and mapping that came back by path is opened once more with the user's own rights, by the path
that it really has: what the user could not open is not given to the user's processes.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.paths import has_lost_its_name
from slurmckpt.capture.processes import Process
from slurmckpt.errors import Refused

_OF_PROCESS = re.compile(r"/proc/[0-9]+(?=/|$| \(deleted\)$)", re.ASCII)
# Where an owner changes no modes.
_KERNEL = ("/proc/", "/sys/")
# Mappings that are shown with a name but have no file that could be opened.
_NAMELESS = ("/memfd:", "/dev/zero (deleted)", "/SYSV", "/[aio]", "/anon_hugepage")


@dataclass(frozen=True)
class Reopened:
    """One object of one process. path: where it really lies. flags: of open(2), as far as they decide about rights.

    owner: uid of who may give itself every right to it: a file may have been made read-only when it was open already,
    or made so and opened for writing by the same call. -1 for nobody.
    """

    process: str
    what: str
    path: str
    device: int
    inode: int
    flags: int
    owner: int = -1


def collect(
    processes: Iterable[Process],
    given: Collection[tuple[int, int]],
    only: Mapping[int, Collection[int]] | None = None,
) -> list[Reopened]:
    """Everything that these processes have by path. To be called as root, while they stand still.

    given: (device, inode) of the descriptors that the job itself was given: they were not opened by path. only: by
    pids inside the pod, these descriptors and nothing else.
    """
    found: dict[tuple[str, int, int], Reopened] = {}
    for process in processes:
        base = f"{procfs.PROC}/{process.pid}"
        numbers = procfs.names(f"{base}/fd") if only is None else map(str, only.get(process.ns_pid, ()))
        for name in numbers:
            _add(found, process, f"descriptor {name}", f"{base}/fd/{name}", _access(f"{base}/fdinfo/{name}"), given)
        if only is not None:
            continue
        for name in ("cwd", "root"):
            _add(found, process, name, f"{base}/{name}", os.O_PATH, given)
        _add(found, process, "program", f"{base}/exe", os.O_RDONLY, given)
        shared = _shared_writable(f"{base}/maps")
        for name in procfs.names(f"{base}/map_files"):
            flags = os.O_RDWR if name in shared else os.O_RDONLY
            _add(found, process, f"mapping {name}", f"{base}/map_files/{name}", flags, given)
    return list(found.values())


def check(objects: Iterable[Reopened], root: int, uid: int) -> None:
    """Raises Refused at the first object that the user could not have. To be called with the user's identity.

    root: descriptor of the root directory of these processes. uid: of the user.
    """
    for each in objects:
        if not _may_have(each, root, uid):
            where = f"{each.what} would lead to {each.path}"
            way_out = "give its user the right to, as far as it is the user's own"
            raise Refused(f"{each.process}: {where}, which its user may not open like that: {way_out}")


def _add(
    found: dict[tuple[str, int, int], Reopened],
    process: Process,
    what: str,
    link: str,
    flags: int,
    given: Collection[tuple[int, int]],
) -> None:
    path = procfs.link(link)
    if not path or not path.startswith("/") or path.startswith(_NAMELESS) or path == "/":
        return
    try:
        status = os.stat(link)
    except FileNotFoundError:
        return
    # Deleted: CRIU made it anew from the image, or found it by another name. Its owner could open it by that.
    lost = status.st_uid == process.uid and has_lost_its_name(path, status, f"{procfs.PROC}/{process.pid}/root")
    nameless = not status.st_nlink or lost
    if stat.S_ISSOCK(status.st_mode) or nameless or (status.st_dev, status.st_ino) in given:
        return
    owner = -1 if path.startswith(_KERNEL) else status.st_uid
    found.setdefault(
        (path, flags, status.st_ino),
        Reopened(str(process), what, path, status.st_dev, status.st_ino, flags, owner),
    )


def _may_have(each: Reopened, root: int, uid: int) -> bool:
    path = each.path.lstrip("/")
    if each.owner == uid and _is(path, os.O_PATH, root, each):
        return True
    if each.flags & os.O_PATH:
        # The dot asks for the right to search a directory itself.
        return _is(f"{path}/.", os.O_PATH, root, each) or _is(path, os.O_PATH, root, each, directory=False)
    if _is(path, each.flags, root, each) or _belongs_to_a_dead(each, root):
        return True
    # A program that may be executed and not read is mapped all the same.
    return (
        each.flags == os.O_RDONLY
        and _is(path, os.O_PATH, root, each)
        and os.access(path, os.X_OK, dir_fd=root, effective_ids=True)
    )


def _belongs_to_a_dead(each: Reopened, root: int) -> bool:
    """Whether it is a file in /proc of a process that has ended: nobody can read it (ESRCH), whoever opened it."""
    match = _OF_PROCESS.match(each.path)
    try:
        return match is not None and os.stat("proc", dir_fd=root).st_dev == each.device and not _exists(match[0], root)
    except OSError:
        return False


def _exists(path: str, root: int) -> bool:
    try:
        os.stat(path.lstrip("/"), dir_fd=root)
    except FileNotFoundError:
        return False
    return True


def _is(path: str, flags: int, root: int, each: Reopened, directory: bool = True) -> bool:
    """Whether opening `path` like that gives that very object. directory: whether a directory is accepted."""
    flags |= os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, dir_fd=root)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
        kind = directory or not stat.S_ISDIR(status.st_mode)
        return kind and (status.st_dev, status.st_ino) == (each.device, each.inode)
    finally:
        os.close(descriptor)


def _access(fdinfo: str) -> int:
    flags = int(procfs.fields(procfs.read(fdinfo) or b"").get("flags", "0"), 8)
    return os.O_PATH if flags & os.O_PATH else flags & os.O_ACCMODE


def _shared_writable(maps: str) -> set[str]:
    """The names in map_files of mappings that are shared and writable. proc_pid_maps(5)."""
    names = set()
    for line in (procfs.read(maps, 64 << 20) or b"").split(b"\n"):
        words = line.split(b" ", 2)
        if len(words) > 1 and words[1][1:2] == b"w" and words[1][3:4] == b"s":
            with contextlib.suppress(UnicodeDecodeError):
                names.add(words[0].decode("ascii"))
    return names
