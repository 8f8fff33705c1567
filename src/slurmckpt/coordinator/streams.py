"""What the coordinator keeps of a task's standard streams after the task has them.

Enough to drain pipes and to measure files, never an end of a pipe: that would hide the end of file from slurmstepd.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from slurmckpt.capture import procfs
from slurmckpt.coordinator.task import Task

_O_PATH = 0o10000000


@dataclass
class OutputHolder:
    """A descriptor through which a regular file is written.

    name says whose it is, e.g. `batch/0/1` or `srun/<digest>/1`. descriptor: a dup of ours, so it shares the offset of
    the holder's. Owned.
    """

    name: str
    descriptor: int

    @property
    def path(self) -> str:
        """The file's path as this node sees it; ends in ` (deleted)` when it has none."""
        return os.readlink(f"/proc/self/fd/{self.descriptor}")

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the file."""
        status = os.fstat(self.descriptor)
        return status.st_dev, status.st_ino

    @property
    def appends(self) -> bool:
        """Whether every write goes to the end of the file."""
        return bool(fcntl.fcntl(self.descriptor, fcntl.F_GETFL) & os.O_APPEND)

    def dup(self) -> OutputHolder:
        """A holder of the same name and offset that lives on when this one is closed."""
        return OutputHolder(self.name, _dup(self.descriptor))

    def close(self) -> None:
        """Give the dup up."""
        os.close(self.descriptor)


@dataclass
class Streams:
    """pipes: O_PATH references to the pipes that tasks and their shims write to. inputs: those that tasks read from.

    files: regular files that they were given to write. held: local task id to the memory of its shim's held lines.
    shims: pids on this node of the shims that relay output. given: what each task was given, by task and number, for a
    restore in place; relayed: which of it are pipes that a shim relays. kept_open: see keep_open().
    """

    pipes: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    files: list[OutputHolder] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)
    shims: list[int] = field(default_factory=list)
    given: dict[int, dict[int, int]] = field(default_factory=dict)
    relayed: list[int] = field(default_factory=list)
    kept_open: dict[int, int] = field(default_factory=dict)

    def keep(self, step: str, task: Task) -> None:
        """Remember the streams of one task before its descriptors are handed on."""
        index = task.hello.task
        given = self.given.setdefault(index, {})
        for number, descriptor in task.descriptors.items():
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISFIFO(mode):
                given[number] = _reference(descriptor)
                (self.pipes if _writable(descriptor) else self.inputs).append(_reference(descriptor))
                if number in task.relays:
                    self.relayed.append(given[number])
            elif not stat.S_ISSOCK(mode):
                given[number] = _dup(descriptor)
                if stat.S_ISREG(mode) and _writable(descriptor):
                    self.files.append(OutputHolder(f"{step}/{index}/{number}", _dup(descriptor)))
        self.pipes += [_reference(descriptor) for descriptor in task.relays.values()]
        self.held[index] = _dup(task.held)
        if task.relays:
            self.shims.append(task.shim_pid)

    def keep_open(self, inodes: Container[int]) -> None:
        """Hold a write end of each relayed pipe with one of these inodes, and of no other.

        A shim that sees the end of such a pipe gives up what lies behind it. When the last task that writes to it has
        crashed and is to be restored, there must be no end to see.
        """
        for pipe in self.relayed:
            inode = os.fstat(pipe).st_ino
            if inode in inodes and inode not in self.kept_open:
                self.kept_open[inode] = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            elif inode not in inodes and inode in self.kept_open:
                os.close(self.kept_open.pop(inode))

    def relayed_inodes(self) -> list[int]:
        """The inodes of the pipes that shims relay."""
        return [os.fstat(pipe).st_ino for pipe in self.relayed]

    def close(self) -> None:
        """Forget them."""
        given = [descriptor for descriptors in self.given.values() for descriptor in descriptors.values()]
        for descriptor in [*self.pipes, *self.inputs, *self.held.values(), *given, *self.kept_open.values()]:
            os.close(descriptor)
        self.given.clear()
        self.relayed.clear()
        self.kept_open.clear()
        self.pipes.clear()
        self.inputs.clear()
        self.held.clear()
        self.shims.clear()
        while self.files:
            self.files.pop().close()


@contextlib.contextmanager
def readable(pipes: Sequence[int]) -> Iterator[list[int]]:
    """Pipes that Streams refers to, opened for a moment so that they can be asked how full they are."""
    opened: list[int] = []
    try:
        for pipe in pipes:
            with contextlib.suppress(OSError):
                opened.append(os.open(f"/proc/self/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        yield opened
    finally:
        for descriptor in opened:
            os.close(descriptor)


def files_written_by(pid: int, name: str) -> list[OutputHolder]:
    """Every regular file that process `pid` holds open for writing, as dups that share its offsets (pidfd_getfd(2)).

    name: prefix of the holders' names. A standard stream goes by its number, everything else by its path (`#2` for the
    second one of a path): an srun that runs again opens the same files, in another order among its sockets.
    Empty when the process is gone. The caller closes them.
    """
    holders: list[OutputHolder] = []
    paths: Counter[str] = Counter()
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return holders
    try:
        numbers = sorted(int(entry) for entry in os.listdir(f"/proc/{pid}/fd"))
        for number in numbers:
            descriptor = _borrow_written_file(pid, pidfd, number)
            if descriptor is not None:
                holder = OutputHolder(f"{name}/{number}", descriptor)
                holders.append(holder)
                if number > 2:
                    paths[holder.path] += 1
                    holder.name = f"{name}/{holder.path.lstrip('/')}#{paths[holder.path]}"
    except OSError:
        pass  # it ended while we looked
    finally:
        os.close(pidfd)
    return holders


def _borrow_written_file(pid: int, pidfd: int, number: int) -> int | None:
    """A dup of descriptor `number` of a process; None when it is no regular file open for writing, or closed by now."""
    try:
        # Looked at before it is taken: even for a moment we must not hold the end of a pipe.
        if not stat.S_ISREG(os.stat(f"/proc/{pid}/fd/{number}").st_mode):
            return None
        descriptor = procfs.borrow_descriptor(pidfd, number)
    except OSError:
        return None
    if _writable(descriptor) and stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _dup(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def _reference(descriptor: int) -> int:
    return os.open(f"/proc/self/fd/{descriptor}", _O_PATH | os.O_CLOEXEC)


def _writable(descriptor: int) -> bool:
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)
