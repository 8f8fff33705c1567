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
    """Bytes that save() would write: sparse files count in full, as their holes are written."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def save(directory: Path, archive: Path) -> bool:
    """Write everything in it to `archive` (tar); False and no archive when it is empty. Raises ShmError.

    To be called while the captured ranks stand still. Unix sockets and devices are left out.
    """
    try:
        top = os.open(directory, archiving.DIRECTORY)
        try:
            if not os.listdir(top):
                return False
            target = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with archiving.written_to(target) as tar:
                    archiving.add_all(tar, top)
            finally:
                os.close(target)
        finally:
            os.close(top)
    except (OSError, RecursionError) as error:
        raise ShmError(f"/dev/shm of the job cannot be saved: {getattr(error, 'strerror', None) or error}") from error
    return True


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
