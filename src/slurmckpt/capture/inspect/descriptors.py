"""The open descriptors of the processes of a pod: one readlink each, and no more where that says enough."""

from __future__ import annotations

import errno
import os
import re
import select
import stat
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from enum import IntEnum

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.paths import DELETED, has_lost_its_name
from slurmckpt.capture.processes import Process

# The first lines of /proc/PID/fdinfo/N (proc_pid_fdinfo(5)), in the order of seq_show() in Linux fs/proc/fd.c.
_FDINFO = re.compile(rb"pos:\t(\d+)\nflags:\t([0-7]+)\nmnt_id:\t(\d+)\n")
_TERMINAL = re.compile(rb"^tty-index:\s*(\d+)$", re.MULTILINE)
# As in /proc/locks (proc_locks(5)).
_WRITE_LEASE = re.compile(rb"^lock:\s*\d+: LEASE +\w+ +WRITE ", re.MULTILINE)
# The anonymous kinds whose fdinfo says what matters.
_TELLING = frozenset({"eventfd", "pidfd", "inotify", "fanotify"})
_NUMBERED = re.compile(r"(pipe|socket):\[(\d+)\]")


@dataclass(frozen=True)
class Holder:
    """A descriptor by its number in a process."""

    process: Process
    descriptor: int


class Writing(IntEnum):
    """Where a file may be written, from what is certain to what is not known.

    APPENDED: at its end only (O_APPEND). ONWARDS: the descriptor is for writing only and stands at the end, as after a
    shell's `>`, which may begin once more. ONWARDS_AND_READ: it stands there, too, but may have been elsewhere.
    """

    APPENDED = 0
    ONWARDS = 1
    ONWARDS_AND_READ = 2
    ANYWHERE = 3


@dataclass(frozen=True)
class FileDescriptor:
    """An open file that has a path: regular file, directory, device or named pipe.

    path: as seen inside the pod; not absolute when it cannot be reached from there, empty when longer than a page.
    flags: those of open(2). mount: the mount's id. position: the offset in bytes. terminal: the number of the terminal
    that this is the master of, -1 for anything else. leased: its process is to be asked before anybody else opens the
    file (F_SETLEASE with F_WRLCK, fcntl(2)). deleted: its name is gone, and the path has the kernel's word for that at
    its end.
    """

    holder: Holder
    path: str
    status: os.stat_result
    flags: int
    mount: int
    position: int
    terminal: int = -1
    leased: bool = False
    deleted: bool = False

    @property
    def key(self) -> str:
        """How CRIU names it when it is declared external: dump_one_reg_file() in CRIU's files-reg.c."""
        return f"file[{self.mount:x}:{self.status.st_ino:x}]"

    @property
    def last_path(self) -> str:
        """The path that it has or, where its name is gone, had."""
        return self.path.removesuffix(DELETED) if self.deleted else self.path

    @property
    def device(self) -> str:
        """That of its file system, as mountinfo has it."""
        return device_name(self.status)

    @property
    def link(self) -> str:
        """Leads to the open file itself, as long as the process lives. Only root may follow it."""
        return f"{procfs.PROC}/{self.holder.process.pid}/fd/{self.holder.descriptor}"

    @property
    def may_write(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_RDONLY

    @property
    def is_device(self) -> bool:
        """Whether it is a character or block device."""
        return stat.S_ISCHR(self.status.st_mode) or stat.S_ISBLK(self.status.st_mode)

    @property
    def is_written(self) -> bool:
        """Whether it is a regular file open for writing that has a path; CRIU keeps the content of one without."""
        return stat.S_ISREG(self.status.st_mode) and self.may_write and self.status.st_nlink > 0 and not self.deleted

    @property
    def writing(self) -> Writing:
        """Where it may be written through this descriptor."""
        if self.flags & os.O_APPEND:
            return Writing.APPENDED
        if self.position != self.status.st_size:
            return Writing.ANYWHERE
        return Writing.ONWARDS if self.flags & os.O_ACCMODE == os.O_WRONLY else Writing.ONWARDS_AND_READ

    @property
    def is_anonymous_memory(self) -> bool:
        """memfd_create(2): it lies on a mount of the kernel's own that no namespace shows."""
        return self.path.startswith("/memfd:") and self.status.st_nlink == 0


@dataclass(frozen=True)
class Anonymous:
    """A descriptor of a kernel object without a path. kind: the name that anon_inode gives. information: its fdinfo."""

    holder: Holder
    kind: str
    information: bytes


@dataclass
class PipeEnds:
    """Who holds which end of one pipe inside the pod."""

    readers: list[Holder] = field(default_factory=list)
    writers: list[Holder] = field(default_factory=list)


@dataclass(frozen=True)
class HalfPipe:
    """A pipe of which the pod holds one end only. reading: whether that is the reading end."""

    inode: int
    holder: Holder
    reading: bool

    @property
    def key(self) -> str:
        """How CRIU names it when it is declared external."""
        return f"pipe:[{self.inode}]"


@dataclass
class Descriptors:
    """All descriptors that one or more looks at a pod found.

    pipes and sockets by inode. packet_pipes: writers of pipes in packet mode (O_DIRECT). highest: the highest
    descriptor of each process, by pid. count: how many were looked at. complete: False when `limit` ended the look.
    """

    pipes: dict[int, PipeEnds] = field(default_factory=dict)
    sockets: dict[int, Holder] = field(default_factory=dict)
    files: list[FileDescriptor] = field(default_factory=list)
    anonymous: list[Anonymous] = field(default_factory=list)
    packet_pipes: list[Holder] = field(default_factory=list)
    highest: dict[int, Holder] = field(default_factory=dict)
    count: int = 0
    complete: bool = True
    steady: Set[int] | None = None

    def half_pipes(self) -> Iterator[HalfPipe]:
        """The pipes of which these processes hold one end only."""
        for inode, ends in self.pipes.items():
            if bool(ends.readers) != bool(ends.writers):
                yield HalfPipe(inode, (ends.readers or ends.writers)[0], bool(ends.readers))

    def confirm(self, later: Descriptors) -> None:
        """Take over the ends that only a later look found, and drop the pipes that only one of the looks found.

        Whoever opens and closes pipes all the time is seen with half of one now and then, but not twice with the same.
        """
        self.steady = self.sockets.keys() & later.sockets.keys()
        self.sockets = later.sockets | self.sockets
        self.complete = self.complete and later.complete
        self.pipes = {
            inode: PipeEnds(ends.readers + again.readers, ends.writers + again.writers)
            for inode, ends in self.pipes.items()
            if (again := later.pipes.get(inode)) is not None
        }


def device_name(status: os.stat_result) -> str:
    """The device of a file's file system, `MAJOR:MINOR` in decimal as mountinfo has it."""
    return f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"


def read_descriptors(processes: Iterable[Process], limit: int) -> Descriptors:
    """Look at the descriptors of all `processes`, at `limit` of them at most.

    It blocks while a file system does not answer stat(2), so it does not belong into an event loop.
    """
    found = Descriptors()
    for process in processes:
        base = f"{procfs.PROC}/{process.pid}"
        with procfs.opened(f"{base}/fd") as links, procfs.opened(f"{base}/fdinfo") as records:
            if links is not None and records is not None:
                _look_at(_Table(process, links, records), limit, found)
        if not found.complete:
            break
    return found


def other_end_lives(pipe: HalfPipe) -> bool:
    """Whether anybody, anywhere, holds the other end.

    It asks the open file itself (poll(2): POLLHUP without writers, POLLERR without readers), because a second open()
    of a pipe knows nothing of writers that were there before. Where the kernel offers no pidfd_getfd the answer is
    yes, and False when the holder is gone.
    """
    try:
        pidfd = os.pidfd_open(pipe.holder.process.pid)
    except OSError as error:
        return not procfs.is_gone(error)
    try:
        descriptor = procfs.borrow_descriptor(pidfd, pipe.holder.descriptor)
    except OSError as error:
        return not (procfs.is_gone(error) or error.errno == errno.EBADF)  # EBADF: closed meanwhile
    finally:
        os.close(pidfd)
    try:
        if os.fstat(descriptor).st_ino != pipe.inode:
            return False
        poll = select.poll()
        poll.register(descriptor, select.POLLIN if pipe.reading else select.POLLOUT)
        events = dict(poll.poll(0)).get(descriptor, 0)
    finally:
        os.close(descriptor)
    return not events & (select.POLLHUP if pipe.reading else select.POLLERR)


@dataclass(frozen=True)
class _Table:
    """What /proc shows of the descriptors of a process. links, records: our descriptors of its fd and fdinfo."""

    process: Process
    links: int
    records: int

    def record(self, name: str) -> bytes:
        """Empty when the descriptor has gone."""
        return procfs.read_record(name, directory=self.records) or b""


def _look_at(table: _Table, limit: int, found: Descriptors) -> None:
    highest = -1
    for name in procfs.names(table.links):
        if found.count >= limit:
            found.complete = False
            return
        found.count += 1
        holder = Holder(table.process, int(name))
        highest = max(highest, holder.descriptor)
        _look_at_one(table, holder, name, found)
    if highest >= 0:
        found.highest[table.process.pid] = Holder(table.process, highest)


def _look_at_one(table: _Table, holder: Holder, name: str, found: Descriptors) -> None:
    target = procfs.link(name, table.links)
    if target is None:
        return
    numbered = _NUMBERED.fullmatch(target)
    if numbered is None:
        if target.startswith("anon_inode:"):
            kind = target[len("anon_inode:") :].strip("[]")
            found.anonymous.append(Anonymous(holder, kind, table.record(name) if kind in _TELLING else b""))
        elif target == "" or target.startswith(("/", "(")):
            _look_at_file(table, holder, name, target, found)
        # Others, such as `net:[4026531840]`, are namespaces and pidfds, which CRIU knows by themselves.
    elif numbered[1] == "socket":
        found.sockets.setdefault(int(numbered[2]), holder)
    else:
        _look_at_pipe(table, holder, name, int(numbered[2]), found)


def _look_at_pipe(table: _Table, holder: Holder, name: str, inode: int, found: Descriptors) -> None:
    # The permissions of the link itself say how the descriptor was opened (proc_pid_fd(5)).
    status = procfs.status(name, table.links, follow=False)
    if status is None:
        return
    ends = found.pipes.setdefault(inode, PipeEnds())
    if status.st_mode & stat.S_IWUSR and not ends.writers:
        match = _FDINFO.match(table.record(name))
        if match is not None and int(match[2], 8) & os.O_DIRECT:
            found.packet_pipes.append(holder)
    if status.st_mode & stat.S_IRUSR:
        ends.readers.append(holder)
    if status.st_mode & stat.S_IWUSR:
        ends.writers.append(holder)


def _look_at_file(table: _Table, holder: Holder, name: str, target: str, found: Descriptors) -> None:
    information = table.record(name)
    status = procfs.status(name, table.links)
    match = _FDINFO.match(information)
    if status is None or match is None:
        return
    position, flags, mount = int(match[1]), int(match[2], 8), int(match[3])
    terminal = -1
    if stat.S_ISCHR(status.st_mode) and (index := _TERMINAL.search(information)):
        terminal = int(index[1])
    leased = b"\nlock:" in information and _WRITE_LEASE.search(information) is not None
    deleted = has_lost_its_name(target, status, f"{procfs.PROC}/{table.process.pid}/root")
    found.files.append(FileDescriptor(holder, target, status, flags, mount, position, terminal, leased, deleted))
