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
import stat
import subprocess
import tarfile
import tempfile
from pathlib import Path

from slurmckpt.errors import SlurmckptError

ARCHIVE = "shm.tar"
_MODE = 0o1777
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: what has become a FIFO since it was looked at must not hold us up.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


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
        top = os.open(directory, _DIRECTORY)
        try:
            if not os.listdir(top):
                return False
            target = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(target, "wb") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                _add_all(tar, top, "", {})
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
                    _check(member)
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


def _add_all(tar: tarfile.TarFile, directory: int, prefix: str, seen: dict[tuple[int, int], str]) -> None:
    """The content of one directory. seen: files with more than one name, by device and inode."""
    for name in sorted(os.listdir(directory)):
        # What somebody else removes while we look was not the captured ranks' to keep.
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                flags = _DIRECTORY if stat.S_ISDIR(mode) else _FILE
                descriptor = os.open(name, flags, dir_fd=directory)
                try:
                    _add_open(tar, descriptor, prefix + name, seen)
                finally:
                    os.close(descriptor)
            elif stat.S_ISLNK(mode) or stat.S_ISFIFO(mode):
                member = _member(prefix + name, os.stat(name, dir_fd=directory, follow_symlinks=False))
                member.type = tarfile.FIFOTYPE
                if stat.S_ISLNK(mode):
                    member.type, member.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=directory)
                tar.addfile(member)


def _add_open(tar: tarfile.TarFile, descriptor: int, path: str, seen: dict[tuple[int, int], str]) -> None:
    status = os.fstat(descriptor)
    member = _member(path, status)
    if stat.S_ISDIR(status.st_mode):
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
        _add_all(tar, descriptor, path + "/", seen)
    elif stat.S_ISREG(status.st_mode):
        first = seen.setdefault((status.st_dev, status.st_ino), path)
        if first != path:
            member.type, member.linkname = tarfile.LNKTYPE, first
            tar.addfile(member)
        else:
            member.size = status.st_size
            with open(descriptor, "rb", closefd=False) as content:
                tar.addfile(member, content)


def _member(path: str, status: os.stat_result) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.mode, member.uid, member.gid = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
    member.mtime = int(status.st_mtime)
    return member


def _check(member: tarfile.TarInfo) -> None:
    # The archive is ours and signed; its names are the user's.
    kind = member.isreg() or member.isdir() or member.issym() or member.isfifo() or member.islnk()
    names = [member.name, member.linkname] if member.islnk() else [member.name]
    if not kind or any(name.startswith("/") or ".." in name.split("/") for name in names):
        raise ShmError(f"/dev/shm of the job holds {member.name!r}, which is not restored")


def _run(*command: str) -> None:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except OSError as error:
        raise ShmError(f"{command[0]} cannot be executed: {error.strerror}") from error
    if done.returncode:
        raise ShmError(f"{command[0]} failed: {done.stderr.strip()[:200]}")
