"""The files that a job only reads, or has mapped: saved where they may be gone at the restore.

That is so on the node itself, whose /tmp another node does not have, and for what was made since the job began, as the
temporary files of a compiler. At the restore such a file is made anew where it is gone, and must have the same content
where it is not: what a user has written there since is nobody's to undo.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from slurmckpt.capture.inspect.mounts import LOCAL_FILE_SYSTEMS, Mount, mount_of
from slurmckpt.capture.inspect.used import UsedFile
from slurmckpt.coordinator.files import content
from slurmckpt.coordinator.files.records import opened, record
from slurmckpt.coordinator.files.rules import Pod, Rules, Treatment
from slurmckpt.store.manifest import OpenFile
from slurmckpt.units import format_bytes

# Whatever else is on the same file system: no node shares it with others.
_TEMPORARY = ("/tmp/", "/var/tmp/")
# As many has no program but one that has a whole installation of its own, which is to be carried.
_MAX_FILES = 4096
# A larger one is copied when the ranks run again; until then a descriptor keeps it.
_SMALL_BYTES = 1 << 20
_MAX_HELD = 256
_NAMED = 2
_OURS = ("read", "temporary")


@dataclass(frozen=True)
class ReadFile:
    """A file that is only read. size: bytes. is_local: whether it lies on the node itself. is_own: is it the user's?"""

    path: str
    device: int
    inode: int
    size: int
    is_local: bool
    is_own: bool


@dataclass(frozen=True)
class Found:
    """wanted: of each pod, what is to be saved. left: what lies on the node itself and cannot be. seen: all of both, by
    device and inode.
    """

    wanted: list[list[ReadFile]]
    left: list[ReadFile] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)

    @property
    def bytes(self) -> int:
        """How much is going to be saved."""
        return sum({(one.device, one.inode): one.size for each in self.wanted for one in each}.values())


def find(
    pods: Sequence[Pod],
    rules: Rules,
    without: Collection[tuple[int, int]] = (),
    carried: Sequence[str] = (),
    scripts: Collection[str] = (),
) -> Found:
    """What is saved of what the pods read. As root: whoever has a file open may have no right to its directory.

    without: device and inode of files that are brought back in another way; carried: directories, and scripts: paths,
    of such. Blocks while a file system does not answer.
    """
    apart = tuple(f"{path}/" for path in carried)
    seen = [
        [
            one
            for one in _looked_at(pod, rules)
            if not one.path.startswith(apart) and one.path not in scripts and (one.device, one.inode) not in without
        ]
        for pod in pods
    ]
    fitting: dict[tuple[int, int], bool] = {}
    total = 0
    for one in sorted((one for each in seen for one in each), key=lambda one: (not one.is_local, one.size)):
        identity = one.device, one.inode
        if identity not in fitting:
            fits = one.size <= rules.settings.max_read_each and total + one.size <= rules.settings.max_read
            fitting[identity] = fits and one.is_own and len(fitting) < _MAX_FILES and rules.settings.max_read > 0
            total += one.size if fitting[identity] else 0
    wanted = [[one for one in each if fitting[one.device, one.inode]] for each in seen]
    left = {one.path: one for each in seen for one in each if one.is_local and not fitting[one.device, one.inode]}
    return Found(wanted, list(left.values()), set(fitting))


class Reader:
    """Saves what is read in one cut, and what nobody has open. left: what lies on the node itself and was not saved."""

    def __init__(self, reserve: Callable[[int], int], places: dict[tuple[int, int], int]) -> None:
        """reserve: gives room for so many bytes, by the place where it begins. places: of what is saved already."""
        self.left: list[ReadFile] = []
        self._reserve = reserve
        self._places = places
        # descriptor, status, the file, and the lists in which it is noted
        self._held: dict[tuple[int, int], tuple[int, os.stat_result, ReadFile]] = {}
        self._notes: list[list[OpenFile]] = []

    def save(
        self,
        pod: Pod,
        files: Sequence[ReadFile],
        target: int,
        noted: list[OpenFile],
        go_on: Callable[[], None],
        treatment: Treatment = "read",
    ) -> None:
        """Note these files of a pod in `noted`, with their content in `target`. As the user, while the ranks stand.

        One that cannot be read under its name is no reason against a checkpoint.
        """
        self._notes.append(noted)
        for file in files:
            go_on()
            try:
                saved = self._save(pod.root, file, target, go_on, treatment)
            except OSError:
                saved = None
            if saved is not None:
                noted.append(saved)
            elif file.is_local:
                self.left.append(file)

    def finish(self, target: int, go_on: Callable[[], None]) -> None:
        """Copy what was only held. As the user; the ranks run again, and what they have changed since is not saved."""
        for identity, (source, before, file) in self._held.items():
            place = self._places[identity]
            try:
                content.copy(source, target, place, before.st_size, go_on)
                now = os.fstat(source)
                whole = (now.st_mtime_ns, now.st_size) == (before.st_mtime_ns, before.st_size)
            except OSError:
                whole = False
            if not whole:
                for noted in self._notes:
                    noted[:] = [one for one in noted if one.policy not in _OURS or one.content != place]
                if file.is_local:
                    self.left.append(file)

    def close(self) -> None:
        """Let go of what is held."""
        for source, _, _ in self._held.values():
            os.close(source)
        self._held.clear()

    def _save(
        self, root: int, file: ReadFile, target: int, go_on: Callable[[], None], treatment: Treatment
    ) -> OpenFile | None:
        with opened(root, file.path, os.O_RDONLY) as descriptor:
            status, identity = os.fstat(descriptor), (file.device, file.inode)
            if (status.st_dev, status.st_ino) != identity:
                return None
            if identity not in self._places:
                place = self._reserve(status.st_size)
                if status.st_size <= _SMALL_BYTES or len(self._held) >= _MAX_HELD:
                    content.copy(descriptor, target, place, status.st_size, go_on)
                else:
                    self._held[identity] = os.dup(descriptor), status, file
                self._places[identity] = place
            return record(file.path, status, treatment, self._places[identity])


def describe(left: Sequence[ReadFile]) -> str:
    """What a restore on another node will miss, for the job's user; empty when nothing."""
    if not left:
        return ""
    return (
        f"a restore on another node will need {named(left)}, which the job reads and which are on this node only: put"
        " them where all nodes see them, or let the site carry their directory (files.carry) or save more"
        " (files.max_read)"
    )


def named(files: Sequence[ReadFile]) -> str:
    """The largest of them by name, and how many more there are."""
    largest = sorted(files, key=lambda one: one.size, reverse=True)[:_NAMED]
    names = ", ".join(f"{one.path} ({format_bytes(one.size)})" for one in largest)
    more = len(files) - len(largest)
    return f"{names}{f' and {more} more files' if more else ''}"


def _looked_at(pod: Pod, rules: Rules) -> Iterator[ReadFile]:
    """Those that may be gone at the restore, each once."""
    mounts: dict[str, Mount | None] = {}
    found: dict[tuple[int, int, str], ReadFile] = {}
    for used in pod.scan.used_files:
        if not rules.concern(used.path) or used.path.startswith("/proc/"):
            continue
        status = _status(used)
        if status is None or (status.st_uid != rules.uid and not used.path.startswith(_TEMPORARY)):
            continue
        directory = os.path.dirname(used.path)
        mount = mounts.get(directory) or mounts.setdefault(directory, mount_of(directory, pod.mounts))
        is_local = mount is not None and mount.kind in LOCAL_FILE_SYSTEMS
        is_local = is_local and (used.path.startswith(_TEMPORARY) or status.st_dev not in rules.shared)
        is_own = status.st_uid == rules.uid
        if (is_local or (is_own and status.st_ctime_ns >= rules.since)) and rules.policy(used.path) != "keep":
            one = ReadFile(used.path, status.st_dev, status.st_ino, status.st_size, is_local, is_own)
            found.setdefault((one.device, one.inode, one.path), one)
    yield from found.values()


def _status(used: UsedFile) -> os.stat_result | None:
    """Of the file itself, when it is regular and still has a name."""
    for link in used.links:
        with contextlib.suppress(OSError):
            status = os.stat(link)
            return status if stat.S_ISREG(status.st_mode) and status.st_nlink else None
    return None
