"""One file of a pod after the other as it was at the boundary, before CRIU opens them again.

All are looked at before the first is changed. What fails afterwards leaves files that the next try, from this or an
older checkpoint, brings to its own boundary. Runs with the identity of the job's user, below the root of its pod: what
that user has put in the place of a file gets nobody else's rights.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from slurmckpt.coordinator.files import content
from slurmckpt.coordinator.files.opening import open_as_owner
from slurmckpt.errors import Refused
from slurmckpt.store.identity import beat
from slurmckpt.store.manifest import OpenFile

_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_TEMPORARY = ("temporary", "link", "directory")
Change = Callable[[], None]


@dataclass(frozen=True)
class Place:
    """Where files are brought back. root: descriptor of the pod's root directory. source: of the saved content.

    uid: of the job's user. made, parents: where the paths of files and directories go that were not there.
    """

    root: int
    source: int
    uid: int
    made: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)


def bring_back(files: Sequence[OpenFile], absent: Sequence[str], place: Place) -> None:
    """Bring these files to the boundary, and remove those that were not there then. As the user. Raises Refused."""
    changes: list[Change] = []
    for file in files:
        beat()
        change = _Returning(file, place).plan()
        if change is not None:
            changes.append(change)
    for change in changes:
        beat()
        change()
    for path in absent:
        _remove(path, place.root)


@dataclass(frozen=True)
class _Returning:
    """One file on its way back."""

    file: OpenFile
    place: Place

    def plan(self) -> Change | None:
        """What has to be done when all others can be brought back, too."""
        file = self.file
        if file.policy == "carried":
            return None
        if file.policy == "pipe":
            return self._plan_pipe()
        if file.policy == "read":
            return self._plan_read()
        if file.policy in _TEMPORARY:
            return self._plan_missing()
        status = self._look()
        if status is None or not stat.S_ISREG(status.st_mode):
            if file.policy != "save":
                what = "is gone" if status is None else "is no regular file any more"
                raise Refused(f"{file.path}, open for writing at the checkpoint, {what}")
            self._check_place(status)
            return self._replace
        same = not file.inode or file.inode == str(status.st_ino)
        if file.policy == "keep":
            return None
        if file.policy == "save":
            return self._rewrite if same else self._replace
        if not same:
            raise Refused(f"{file.path} has been replaced by another file of that name since the checkpoint")
        if file.policy == "unchanged":
            if (status.st_size, status.st_mtime_ns) != (file.size, file.modified):
                raise Refused(
                    f"{file.path} has been written since the checkpoint, and was too large to be saved with it"
                    " (files.max_save)"
                )
            return None
        if status.st_size < file.size:
            raise Refused(f"{file.path} is shorter ({status.st_size} bytes) than at the checkpoint ({file.size} bytes)")
        if file.sample:
            self._check_sample()
        if status.st_size == file.size:
            return None
        with self._errors("is longer than at the checkpoint and cannot be cut"), self._opened(os.O_WRONLY):
            return self._cut

    def _plan_pipe(self) -> Change | None:
        """Of a named pipe nothing but its name is needed; CRIU says what else is wrong with it."""
        try:
            if self._look() is None:
                self._check_place(None)
                return self._make_pipe
        except Refused:
            pass
        return None

    def _plan_read(self) -> Change | None:
        """Made anew where it is gone. What is there instead may be what its user wants now: it is never replaced."""
        file, status = self.file, self._look()
        if status is None:
            self._check_place(None)
            return self._replace
        seen = str(status.st_ino), status.st_size, status.st_mtime_ns
        if seen == (file.inode, file.size, file.modified) or self._has_content():
            return None
        raise Refused(f"{file.path}, {self._use} at the checkpoint, has other content now")

    def _plan_missing(self) -> Change | None:
        """What is there is left alone."""
        if self._look() is not None:
            return None
        self._check_place(None)
        make: dict[str, Change] = {"directory": self._make_directory, "link": self._make_link}
        return make.get(self.file.policy, self._replace)

    def _make_directory(self) -> None:
        with self._errors("cannot be made anew"):
            self._make_directories()
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._below, 0o700, dir_fd=self.place.root)
                self.place.parents.append(self.file.path)
            if self.file.path in self.place.parents:
                directory = os.open(self._below, os.O_RDONLY | os.O_DIRECTORY | _FLAGS, dir_fd=self.place.root)
                try:
                    os.fchmod(directory, self.file.mode)
                finally:
                    os.close(directory)

    def _make_link(self) -> None:
        with self._errors("cannot be made anew"):
            self._make_directories()
            leads_to = os.pread(self.place.source, self.file.size, self._offset)
            with contextlib.suppress(FileExistsError):
                os.symlink(leads_to, os.fsencode(self._below), dir_fd=self.place.root)
                self.place.made.append(self.file.path)
                times = self.file.modified, self.file.modified
                os.utime(self._below, ns=times, dir_fd=self.place.root, follow_symlinks=False)

    def _make_pipe(self) -> None:
        with self._errors("cannot be made anew"):
            self._make_directories()
            os.mkfifo(self._below, 0o600, dir_fd=self.place.root)
            self.place.made.append(self.file.path)
            # With both ends nobody is waited for.
            with self._opened(os.O_RDWR) as pipe:
                with contextlib.suppress(OSError):
                    os.fchown(pipe, -1, self.file.group)
                os.fchmod(pipe, self.file.mode)

    def _look(self) -> os.stat_result | None:
        try:
            return os.stat(self._below, dir_fd=self.place.root, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Refused(f"{self.file.path}, {self._use} at the checkpoint: {error.strerror}") from error

    def _check_place(self, status: os.stat_result | None) -> None:
        """Whether the file can be made anew."""
        file = self.file
        if status is not None and not stat.S_ISLNK(status.st_mode):
            raise Refused(f"{file.path}, {self._use} at the checkpoint, is no regular file any more")
        if file.owner != self.place.uid:
            raise Refused(f"{file.path}, {self._use} at the checkpoint, is gone, and was another user's")
        directory = os.path.dirname([self._below, *self._missing_directories()][-1]) or "."
        if not os.access(directory, os.W_OK | os.X_OK, dir_fd=self.place.root, effective_ids=True):
            raise Refused(f"{file.path}, {self._use} at the checkpoint, is gone, and cannot be made anew there")

    def _missing_directories(self) -> list[str]:
        """Those above the file that are not there, from below: programs make them in the node's /tmp, as a JVM does."""
        missing: list[str] = []
        directory = os.path.dirname(self._below)
        while directory:
            try:
                os.stat(directory, dir_fd=self.place.root, follow_symlinks=False)
                break
            except FileNotFoundError:
                missing.append(directory)
                directory = os.path.dirname(directory)
        return missing

    def _check_sample(self) -> None:
        with contextlib.suppress(OSError), self._opened(os.O_RDONLY) as target:
            if content.sample(target, self.file.size) != self.file.sample:
                raise Refused(
                    f"{self.file.path} has been changed before its end since the checkpoint, which has its size only:"
                    ' the site can have it saved (policy "save" in files.rules)'
                )

    def _cut(self) -> None:
        with self._errors("cannot be cut"), self._opened(os.O_WRONLY) as target:
            os.ftruncate(target, self.file.size)

    def _rewrite(self) -> None:
        """In place: it may have other names, and be open elsewhere."""
        with self._errors("cannot be brought back"):
            try:
                with self._opened(os.O_RDWR) as target:
                    content.write_back(self.place.source, self._offset, self.file.size, target)
                    self._finish(target)
            except PermissionError:
                if not self._is_there():
                    raise

    def _replace(self) -> None:
        """Under its name, in place of what is there now: that is another file, and may have other names."""
        with self._errors("cannot be made anew"):
            if self._is_there():
                return
            if self._look() is None:
                self.place.made.append(self.file.path)
            self._make_directories()
            directory = os.path.dirname(self._below)
            name = os.path.join(directory, f".slurmckpt-{secrets.token_hex(8)}")
            target = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600, dir_fd=self.place.root)
            try:
                content.write_back(self.place.source, self._offset, self.file.size, target)
                with contextlib.suppress(OSError):
                    os.fchown(target, -1, self.file.group)
                self._finish(target)
                os.rename(name, self._below, src_dir_fd=self.place.root, dst_dir_fd=self.place.root)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self.place.root)
                raise
            finally:
                os.close(target)

    def _make_directories(self) -> None:
        for missing in reversed(self._missing_directories()):
            os.mkdir(missing, 0o700, dir_fd=self.place.root)
            self.place.parents.append(f"/{missing}")

    def _finish(self, target: int) -> None:
        if stat.S_IMODE(os.fstat(target).st_mode) != self.file.mode:
            os.fchmod(target, self.file.mode)
        status = os.fstat(target)
        if status.st_mtime_ns != self.file.modified:
            # Not a right of everybody who may write to it.
            with contextlib.suppress(PermissionError):
                os.utime(target, ns=(status.st_atime_ns, self.file.modified))

    def _is_there(self) -> bool:
        """Whether what lies there now is as it should be: another pod may have brought it back already."""
        try:
            with self._opened(os.O_RDONLY) as target:
                mode = stat.S_IMODE(os.fstat(target).st_mode)
                return mode == self.file.mode and content.is_same(
                    self.place.source, self._offset, self.file.size, target
                )
        except OSError:
            return False

    def _has_content(self) -> bool:
        try:
            with self._opened(os.O_RDONLY) as target:
                regular = stat.S_ISREG(os.fstat(target).st_mode)
                return regular and content.is_same(self.place.source, self._offset, self.file.size, target)
        except OSError:
            return False

    @property
    def _use(self) -> str:
        if self.file.policy in _TEMPORARY:
            return "in a temporary directory"
        return "open for reading" if self.file.policy == "read" else "open for writing"

    @property
    def _below(self) -> str:
        return self.file.path.lstrip("/")

    @property
    def _offset(self) -> int:
        assert self.file.content is not None
        return self.file.content

    @contextlib.contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        target = open_as_owner(self._below, flags | _FLAGS, self.place.root)
        try:
            yield target
        finally:
            os.close(target)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Refused(f"{self.file.path} {what}: {error.strerror}") from error


def _remove(path: str, root: int) -> None:
    """What came after the boundary to a file that is back there now: it would be taken for that file's."""
    below = path.lstrip("/")
    try:
        if stat.S_ISREG(os.stat(below, dir_fd=root, follow_symlinks=False).st_mode):
            os.unlink(below, dir_fd=root)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise Refused(f"{path}, which was not there at the checkpoint, cannot be removed: {error.strerror}") from error
