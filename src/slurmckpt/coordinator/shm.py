"""The job's private /dev/shm: one tmpfs for all pods of the job on this node, saved while the ranks are frozen.

CRIU carries mappings and descriptors of files there, but not the files: names that are opened again later, semaphores
between processes and the link_remap files that stand for unlinked segments must be there before a restore.

Everybody may write there, and of what writes there only the captured ranks stand still. So root walks it by descriptor
and follows no link, and what it restores is out of reach until it is whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from slurmckpt.coordinator import archive as archiving
from slurmckpt.errors import SlurmckptError

ARCHIVE = "shm.tar"
_MODE = 0o1777


class ShmError(SlurmckptError):
    """The job's /dev/shm cannot be made, saved or filled."""


def mount(directory: Path) -> None:
    """Put an empty tmpfs at `directory`; nothing when one is there."""
    directory.mkdir(mode=0o755, exist_ok=True)
    if os.path.ismount(directory):
        return
    _run("mount", "-t", "tmpfs", "-o", f"mode={_MODE:o},nosuid,nodev", "slurmckpt-shm", str(directory))


def unmount(directory: Path) -> None:
    """Take it away, with everything in it, however often it was mounted."""
    while os.path.ismount(directory):
        _run("umount", "--lazy", str(directory))
    with contextlib.suppress(FileNotFoundError):
        directory.rmdir()


def size(directory: Path) -> int:
    """Bytes of memory that it takes, and a copy on the disk with it. Holes and second names take nothing."""
    found: dict[int, int] = {}
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(parent, name))
                found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


class Copy:
    """Everything in it as an archive (tar), written while the captured ranks stand still.

    Most of it beside CRIU's dump, which changes nothing there but gives names of its own to files: these are added when
    the dump is written. is_late: whether a name is one of them. Unix sockets and devices are left out. All raise
    ShmError.
    """

    def __init__(self, directory: Path, archive: Path, is_late: Callable[[str], bool] = lambda name: False) -> None:
        self._directory = directory
        self._archive = archive
        self._is_late = is_late
        self._stack = contextlib.ExitStack()
        self._top = -1
        self._adding: archiving.Adding | None = None

    def begin(self) -> None:
        """Write what is there, without late names."""
        with self._told():
            self._top = os.open(self._directory, archiving.DIRECTORY)
            self._stack.callback(os.close, self._top)
            target = os.open(self._archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._stack.callback(os.close, target)
            self._adding = archiving.Adding(self._stack.enter_context(archiving.written_to(target)))
            self._adding.content(self._top, wanted=lambda name: not self._is_late(name))

    def finish(self) -> bool:
        """Add the late names; False and no archive when there is nothing."""
        with self._told():
            assert self._adding is not None
            empty = not os.listdir(self._top)
            self._adding.content(self._top, wanted=self._is_late)
            self._stack.close()
            if empty:
                self._archive.unlink()
        return not empty

    def close(self) -> None:
        """To be called in any case; what was not finished is worth nothing."""
        with contextlib.suppress(OSError):
            self._stack.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ShmError(f"/dev/shm of the job cannot be saved: {reason}") from error


def save(directory: Path, archive: Path) -> bool:
    """The whole of Copy at once."""
    copy = Copy(directory, archive)
    try:
        copy.begin()
        return copy.finish()
    finally:
        copy.close()


def fill(directory: Path, archive: Path) -> None:
    """Replace its content by that of `archive`, which was verified before. Raises ShmError."""
    clear(directory)
    try:
        # Closed to the job until all is there: names that it could change meanwhile would lead root elsewhere.
        private = Path(tempfile.mkdtemp(prefix=".slurmckpt-", dir=directory))
        try:
            with tarfile.open(archive, "r:") as tar:
                # Owners and modes as they were: the mount takes no set-user-id and no device (PEP 706).
                tar.extraction_filter = lambda member, _: member
                for member in tar:
                    # The archive is ours and signed; its names are the user's.
                    if not archiving.is_safe(member):
                        raise ShmError(f"/dev/shm of the job holds {member.name!r}, which is not restored")
                    tar.extract(member, private, numeric_owner=True)
            for name in os.listdir(private):
                os.rename(private / name, directory / name)
        finally:
            shutil.rmtree(private)
    except (OSError, tarfile.TarError) as error:
        raise ShmError(f"/dev/shm of the job cannot be filled: {error}") from error


def clear(directory: Path) -> None:
    """Remove everything in it. Raises ShmError."""
    try:
        for entry in os.scandir(directory):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
    except OSError as error:
        raise ShmError(f"/dev/shm of the job cannot be emptied: {error}") from error


def _run(*command: str) -> None:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except OSError as error:
        raise ShmError(f"{command[0]} cannot be executed: {error.strerror}") from error
    if done.returncode:
        raise ShmError(f"{command[0]} failed: {done.stderr.strip()[:200]}")
