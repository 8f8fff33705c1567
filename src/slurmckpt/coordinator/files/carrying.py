"""Directories that come along with a job (files.carry): copied while its ranks stand still, filled before a restore.

A carried directory is the job's own: what was put there after the boundary is taken away at a restore.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from slurmckpt.capture import procfs
from slurmckpt.coordinator import archive as archiving
from slurmckpt.coordinator.files.rules import Pod, Rules
from slurmckpt.errors import Refused, SlurmckptError
from slurmckpt.filerules import expand
from slurmckpt.store.identity import beat
from slurmckpt.units import format_bytes

_MAX_DIRECTORIES = 64
_ENVIRONMENT_BYTES = 4 << 20


@dataclass(frozen=True)
class Directory:
    """One that is to be carried. path: as the pod sees it. root: descriptor of the pod's root directory. uid: the job's
    user, whose it must be.
    """

    path: str
    root: int
    uid: int


@dataclass(frozen=True)
class Filled:
    """A directory that was empty, or was not there (made), before it was filled."""

    path: str
    made: bool


def find(pods: Sequence[Pod], rules: Rules) -> list[Directory]:
    """The directories that the settings name, with the variables of all processes. As root. Raises Refused."""
    found: dict[str, Directory] = {}
    for pod in pods if rules.settings.carry else ():
        environments = [_environment(process.pid) for process in pod.scan.processes]
        for text in rules.settings.carry:
            for path in {expand(text, environment, rules.home) for environment in environments} - {""}:
                found.setdefault(path, Directory(path, pod.root, rules.uid))
    if len(found) > _MAX_DIRECTORIES:
        raise Refused(
            f"the job names {len(found)} directories to be carried (files.carry), more than {_MAX_DIRECTORIES}"
        )
    return [one for _, one in sorted(found.items())]


def choose(directories: Sequence[Directory], home: str) -> list[Directory]:
    """Those that are there and the job's own, none of which lies in another. As the user. Raises Refused, OSError."""
    own = []
    for each in directories:
        with _opened(each) as top:
            if top is None:
                continue
        if home and f"{home.rstrip('/')}/".startswith(f"{each.path}/"):
            raise Refused(f"{each.path} (files.carry) holds the home of the job's user, and cannot be the job's own")
        own.append(each)
    return [each for each in own if not any(each.path.startswith(f"{other.path}/") for other in own)]


def measure(directories: Sequence[Directory], limit: int) -> int:
    """Bytes that save() will write for them. As the user. Raises Refused when they are more than `limit`."""
    total = 0
    for each in directories:
        size = 0
        with _opened(each) as top:
            if top is not None:
                for _, directories_below, names, descriptor in os.fwalk(".", dir_fd=top, follow_symlinks=False):
                    beat()
                    for name in names + directories_below:
                        with contextlib.suppress(OSError):
                            size += os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_size
        total += size
        _check(each, total, limit)
    return total


def save(directory: Directory, target: int, limit: int, go_on: Callable[[], None]) -> None:
    """Write its content to this descriptor (tar). As the user. limit: bytes of content. Raises SlurmckptError."""
    total = 0

    def count(size: int) -> None:
        nonlocal total
        total += size
        _check(directory, total, limit)
        go_on()
        beat()

    try:
        with _opened(directory) as top:
            if top is None:
                raise SlurmckptError(f"{directory.path} (files.carry) has just been removed")
            with archiving.written_to(target) as tar:
                archiving.add_all(tar, top, count)
    except (OSError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SlurmckptError(f"{directory.path} (files.carry) cannot be saved: {reason}") from error


def fill(directory: Directory, source: int, filled: list[Filled]) -> None:
    """Make the directory, and its content that of the archive behind this descriptor. As the user. Raises Refused.

    filled: where it is noted before anything is changed.
    """
    try:
        made = _make(directory.path, directory.root)
        with _opened(directory) as top:
            if top is None:
                raise Refused(f"{directory.path}, which the job carries, is not its user's here")
            if made or not os.listdir(top):
                filled.append(Filled(directory.path, made))
            _clear(top)
            with open(source, "rb", closefd=False) as file, tarfile.open(fileobj=file, mode="r:") as tar:
                # Owners and modes as they were, as far as the user may (PEP 706).
                tar.extraction_filter = lambda member, _: member
                tar.extractall(f"/proc/self/fd/{top}", members=_safe(tar), numeric_owner=True)
    except (OSError, tarfile.TarError, RecursionError) as error:
        raise Refused(f"{directory.path}, which the job carries, cannot be filled: {error}") from error


def empty(directory: Directory, filled: Filled) -> None:
    """Undo fill(). As the user. Raises OSError."""
    with _opened(directory) as top:
        if top is not None:
            _clear(top)
    if filled.made:
        os.rmdir(directory.path.lstrip("/"), dir_fd=directory.root)


def values(pods: Sequence[Pod], name: str) -> list[str]:
    """The directories that this variable names in the environments of the processes. As root."""
    found = {expand(f"${name}", _environment(process.pid), "") for pod in pods for process in pod.scan.processes}
    return sorted(found - {""})


def _environment(pid: int) -> dict[str, str]:
    text = procfs.read(f"{procfs.PROC}/{pid}/environ", _ENVIRONMENT_BYTES) or b""
    pairs = (os.fsdecode(entry).partition("=") for entry in text.split(b"\0"))
    return {name: value for name, _, value in pairs}


def _check(directory: Directory, total: int, limit: int) -> None:
    if total > limit:
        raise Refused(
            f"{directory.path} (files.carry) is too large: all carried directories may have"
            f" {format_bytes(limit)} together (files.max_carry)"
        )


@contextlib.contextmanager
def _opened(directory: Directory) -> Iterator[int | None]:
    """The directory, when it is there and the job's own."""
    try:
        top = os.open(directory.path.lstrip("/"), archiving.DIRECTORY, dir_fd=directory.root)
    except FileNotFoundError:
        yield None
        return
    try:
        if _is_own(directory, os.fstat(top)):
            yield top
        else:
            yield None
    finally:
        os.close(top)


def _is_own(directory: Directory, status: os.stat_result) -> bool:
    """Whether it is the user's, or one that the job has for itself alone, as /tmp with Slurm's namespace/tmpfs."""
    if status.st_uid == directory.uid:
        return True
    try:
        outside = os.stat(directory.path)
    except OSError:
        return False
    return status.st_uid == 0 and (outside.st_dev, outside.st_ino) != (status.st_dev, status.st_ino)


def _make(path: str, root: int) -> bool:
    """Make the directory with those above it. Gives whether there was none."""
    parts, made = path.lstrip("/").split("/"), False
    for count in range(1, len(parts) + 1):
        made = True
        try:
            os.mkdir("/".join(parts[:count]), 0o700, dir_fd=root)
        except FileExistsError:
            made = False
    return made


def _clear(directory: int) -> None:
    """Remove everything in it, below directories that are closed to their owner, too."""
    for name in os.listdir(directory):
        beat()
        if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=directory)
            continue
        below = os.open(name, os.O_PATH | archiving.DIRECTORY, dir_fd=directory)
        try:
            os.chmod(f"/proc/self/fd/{below}", 0o700)
            inside = os.open(".", archiving.DIRECTORY, dir_fd=below)
            try:
                _clear(inside)
            finally:
                os.close(inside)
        finally:
            os.close(below)
        os.rmdir(name, dir_fd=directory)


def _safe(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in tar:
        beat()
        if not archiving.is_safe(member):
            raise Refused(f"a carried directory holds {member.name!r}, which is not restored")
        yield member
