"""What a job has put into the node's temporary directories and has not open, as between two programs of a compiler.

Saved, as far as it fits, when the job's user has nothing else on the node: nobody can tell otherwise whose such a file
is; but what is in the working directory of a process, or in its TMPDIR, is the job's anyway. Made anew where it is
gone; what is there at the restore is left alone.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from slurmckpt.capture.inspect.mounts import LOCAL_FILE_SYSTEMS, mount_of
from slurmckpt.coordinator.files.reading import ReadFile, named
from slurmckpt.coordinator.files.rules import Pod, Rules
from slurmckpt.store.identity import beat

DIRECTORIES = ("/tmp", "/var/tmp")
# A look takes some microseconds each, while the ranks stand still.
_MAX_ENTRIES = 20_000
_MAX_DEPTH = 64
_MAX_FILES = 4096
_MAX_OWN = 256
_MAX_LINKS = 1024


@dataclass
class Temporary:
    """files: what is to be saved. directories: those of the job with all that is in them. left: what is not saved.

    links: symbolic ones, with what they lead to. partial: a directory of the job's own in which there is more than is
    saved.
    """

    files: list[ReadFile] = field(default_factory=list)
    directories: list[tuple[str, os.stat_result]] = field(default_factory=list)
    left: list[ReadFile] = field(default_factory=list)
    links: list[tuple[str, os.stat_result, bytes]] = field(default_factory=list)
    partial: str = ""


@dataclass(frozen=True)
class Places:
    """Directories that no other node has. common: those that all jobs have, empty where others may have files there.

    own: the working directories of the job's processes, and their TMPDIR.
    """

    common: list[str]
    own: list[str]


def places(pod: Pod, directories: Iterable[str], temporary: Iterable[str], alone: bool) -> Places:
    """directories: of the job's own. temporary: what its TMPDIR names. alone: has its user nothing else on the node?"""

    def is_local(path: str) -> bool:
        mount = mount_of(path, pod.mounts)
        return path.startswith("/") and mount is not None and mount.kind in LOCAL_FILE_SYSTEMS

    named = list(temporary)
    own = [path for path in sorted({*directories, *named}) if is_local(path) and path not in DIRECTORIES]
    return Places([path for path in (*DIRECTORIES, *named) if alone and is_local(path)], own[:_MAX_OWN])


def find(
    pod: Pod, rules: Rules, where: Places, apart: Collection[str], known: Collection[tuple[int, int]], used: int
) -> Temporary:
    """What the job has put into these directories. As the user.

    apart: paths of directories that come along in another way; known: device and inode of such files, and of those that
    are open. used: how much of the limit is taken already, in bytes.
    """
    look = _Look(rules, frozenset(apart), known)
    own = [path for path in where.own if look.is_own(pod.root, path)]
    tops: list[str] = []
    for path in (*where.common, *own):
        if not any(path == top or path.startswith(f"{top}/") for top in tops):
            tops.append(path)
            look.begin(pod.root, path)
    found = Temporary(links=look.links)
    for file in sorted(look.files, key=lambda file: file.size):
        fits = file.size <= rules.settings.max_read_each and used + file.size <= rules.settings.max_read
        if fits and len(found.files) < _MAX_FILES:
            used += file.size
            found.files.append(file)
        else:
            found.left.append(file)
    partial = _above(file.path for file in found.left)
    found.directories = [(path, status) for path, status in look.directories if path not in partial]
    whole = {path for path, _ in found.directories}
    found.partial = look.overflow or next((path for path in own if path not in whole), "")
    return found


def describe(left: Sequence[ReadFile], partial: str) -> str:
    """What a restore on another node will miss, for the job's user; empty when nothing."""
    if not left and not partial:
        return ""
    which = named(left) if left else f"what is in {partial}"
    return (
        f"a restore on another node will miss {which}, which the job has put on this node and has not open: keep such"
        " files where all nodes see them, or let the site carry their directory (files.carry) or save more"
        " (files.max_read)"
    )


def _above(paths: Iterable[str]) -> set[str]:
    """All directories in which these lie."""
    found: set[str] = set()
    for path in paths:
        while (path := os.path.dirname(path)) not in found and path != "/":
            found.add(path)
    return found


class _Look:
    """Goes through directories of the user's. files, directories, links: what was found."""

    def __init__(self, rules: Rules, apart: frozenset[str], known: Collection[tuple[int, int]]) -> None:
        self.files: list[ReadFile] = []
        self.directories: list[tuple[str, os.stat_result]] = []
        self.links: list[tuple[str, os.stat_result, bytes]] = []
        self.overflow = ""
        self._rules = rules
        self._apart = apart
        self._known = known
        self._count = 0

    def is_own(self, root: int, path: str) -> bool:
        """Whether it is a directory of the user's that no other node has, and not brought in another way."""
        if path.startswith(tuple(f"{other}/" for other in self._apart)) or path in self._apart:
            return False
        try:
            status = os.stat(path.lstrip("/") or ".", dir_fd=root, follow_symlinks=False)
        except OSError:
            return False
        here = path.startswith(tuple(f"{other}/" for other in DIRECTORIES)) or status.st_dev not in self._rules.shared
        return here and stat.S_ISDIR(status.st_mode) and status.st_uid == self._rules.uid

    def begin(self, root: int, top: str) -> None:
        try:
            descriptor = os.open(top.lstrip("/"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
        except OSError:
            return
        try:
            status = os.fstat(descriptor)
            whole = self._below(descriptor, top, 0)
            if whole and status.st_uid == self._rules.uid and self._is_young(status):
                self.directories.append((top, status))
        except OSError:
            pass
        finally:
            os.close(descriptor)

    def _below(self, directory: int, path: str, depth: int) -> bool:
        """Whether everything in it comes along."""
        whole = True
        with os.scandir(directory) as entries:
            for entry in entries:
                self._count += 1
                if self._count > _MAX_ENTRIES or depth > _MAX_DEPTH:
                    self.overflow = self.overflow or path
                    return False
                beat()
                try:
                    whole = self._one(entry, directory, f"{path}/{entry.name}", depth) and whole
                except OSError:
                    whole = False
        return whole

    def _one(self, entry: os.DirEntry[str], directory: int, path: str, depth: int) -> bool:
        status = entry.stat(follow_symlinks=False)
        if status.st_uid != self._rules.uid:
            return False
        if (status.st_dev, status.st_ino) in self._known or path in self._apart or stat.S_ISSOCK(status.st_mode):
            return True
        if stat.S_ISDIR(status.st_mode):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            below = os.open(entry.name, flags, dir_fd=directory)
            try:
                whole = self._below(below, path, depth + 1)
            finally:
                os.close(below)
            if whole and self._is_young(status):
                self.directories.append((path, status))
            return whole
        wanted = self._is_young(status) and self._rules.policy(path) != "keep" and self._rules.concern(path)
        if stat.S_ISREG(status.st_mode) and wanted:
            self.files.append(ReadFile(path, status.st_dev, status.st_ino, status.st_size, True, True))
            return True
        if stat.S_ISLNK(status.st_mode) and wanted and len(self.links) < _MAX_LINKS:
            self.links.append((path, status, os.readlink(os.fsencode(entry.name), dir_fd=directory)))
            return True
        return False

    def _is_young(self, status: os.stat_result) -> bool:
        return status.st_ctime_ns >= self._rules.since
