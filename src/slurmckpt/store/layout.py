"""Where the store keeps what: STORE/<cluster>/<user>/<job id>/{lease.json,record.json,logs/,<seq>/,<seq>.partial/}."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from slurmckpt.errors import StoreError
from slurmckpt.identity import JobIdentity
from slurmckpt.store.files import make_directory
from slurmckpt.store.identity import UserFiles

PARTIAL_SUFFIX = ".partial"
DELETED_SUFFIX = ".deleted"

# A sequence number has no leading zero, so that one number has one name.
_NUMBERED = re.compile(r"([1-9][0-9]{0,17})(\.partial|\.deleted)?", re.ASCII)


class JobStore:
    """The paths of one job below the store's root, and the sequence numbers in use.

    Only prepare() acts by itself; all other methods that touch the disk are to be called in the user's thread:
    `await files.run(store.sequence_numbers)`.
    """

    def __init__(self, root: Path, job: JobIdentity) -> None:
        self.root = root
        self.job = job
        self.dir = root / job.cluster / job.user / str(job.job_id)

    @property
    def lease(self) -> Path:
        return self.dir / "lease.json"

    @property
    def record(self) -> Path:
        return self.dir / "record.json"

    @property
    def logs(self) -> Path:
        """CRIU's logs of what has failed."""
        return self.dir / "logs"

    def checkpoint(self, seq: int) -> Path:
        """The committed checkpoint `seq`."""
        return self.dir / str(seq)

    def partial(self, seq: int) -> Path:
        """The checkpoint `seq` while it is being written."""
        return self.dir / f"{seq}{PARTIAL_SUFFIX}"

    def deleted(self, seq: int) -> Path:
        """The checkpoint `seq` while it is being removed."""
        return self.dir / f"{seq}{DELETED_SUFFIX}"

    async def prepare(self, files: UserFiles, by_root: bool = True) -> None:
        """Make the job's directory, and those above it where they are missing.

        As root where root may; on storage with root_squash as the user, below a cluster directory that users may write.
        by_root: False where the user has chosen the store's root, and may have put links on the way: then all is made
        with the user's rights.
        Raises StoreError with one line when a directory cannot be made, or is not a directory of the job's user.
        """
        if by_root and os.geteuid() == 0:
            _make_as_root(self.root, self.job)
        await files.run(self._make_as_user)

    def sequence_numbers(self) -> list[int]:
        """The committed checkpoints, oldest first. Raises StoreError when the directory cannot be read."""
        return self.numbers("")

    def next_seq(self) -> int:
        """A number above every one that this job has in use, be it committed, being written or being removed.

        A partial of an earlier incarnation, which may still be writing it, is thus never shared.
        """
        return 1 + max(self.numbers("") + self.numbers(PARTIAL_SUFFIX) + self.numbers(DELETED_SUFFIX), default=0)

    def numbers(self, suffix: str) -> list[int]:
        """The sequence numbers of the directories `<seq><suffix>`, ascending."""
        try:
            with os.scandir(self.dir) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"store {self.dir} cannot be read: {error.strerror}") from error
        matches = [match for match in map(_NUMBERED.fullmatch, names) if match]
        return sorted(int(match[1]) for match in matches if (match[2] or "") == suffix)

    def _make_as_user(self) -> None:
        cluster = self.dir.parent.parent
        if not self.root.is_dir():
            _make_directory(self.root, 0o755)
        if not cluster.is_dir():
            # Where all users may write, the next one needs a place here too; as in the root above, nobody else removes
            # it, but for the one who happens to come first.
            _make_directory(cluster, 0o1777 if _is_for_all(self.root) else 0o755)
        for directory in (self.dir.parent, self.dir):
            _make_directory(directory, 0o700)
            _check_owner(directory, self.job)


def _make_as_root(root: Path, job: JobIdentity) -> None:
    """The directories that only root may make on a local file system. What root may not do is left to the user."""
    cluster = root / job.cluster
    with contextlib.suppress(OSError):
        make_directory(root, mode=0o755)
    with contextlib.suppress(OSError):
        # Sticky and open, as /tmp: with root_squash it is the users who make their directories here.
        make_directory(cluster, mode=0o1777)
    user = cluster / job.user
    try:
        user.mkdir(0o700)
    except OSError:
        return
    try:
        # By descriptor: the new directory, not what may have taken its place.
        descriptor = os.open(user, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchown(descriptor, job.uid, job.gid)
            os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)
    except OSError:
        # root_squash made it a directory of nobody.
        with contextlib.suppress(OSError):
            user.rmdir()


def _is_for_all(directory: Path) -> bool:
    """Whether every user may make entries in it, and remove only the own ones."""
    try:
        return stat.S_IMODE(directory.stat().st_mode) & 0o1002 == 0o1002
    except OSError:
        return False


def _make_directory(path: Path, mode: int) -> None:
    try:
        make_directory(path, mode=mode)
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreError(f"store directory {path} cannot be made: {error.strerror}") from error


def _check_owner(path: Path, job: JobIdentity) -> None:
    try:
        status = path.lstat()
    except OSError as error:
        raise StoreError(f"store directory {path} cannot be used: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise StoreError(f"store directory {path} is not a directory (a link is not accepted)")
    if status.st_uid != job.uid:
        raise StoreError(
            f"store directory {path} is owned by uid {status.st_uid}; it must be owned by {job.user} (uid {job.uid})"
        )
