"""One look at a pod before it is frozen: what a capture has to know about it, and what would make it fail.

The processes run on while they are looked at, so the result is a forecast: CRIU has the last word. Its purpose is to
say no, with a reason and a way out, before a rank has been stopped. Whatever seems to lead out of the pod is looked
at twice, because the other end may have been created, or handed to a child, between the looks at two processes.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from slurmckpt.capture import procfs
from slurmckpt.capture.descriptors import (
    Descriptors,
    FileDescriptor,
    Holder,
    other_end_lives,
    read_descriptors,
)
from slurmckpt.capture.mappings import Mappings, read_mappings
from slurmckpt.capture.mounts import KERNEL_FILE_SYSTEMS, mounts_of
from slurmckpt.capture.processes import Process, Tree, name_of, walk
from slurmckpt.capture.refusals import Refusals
from slurmckpt.capture.sockets import (
    TCP_TABLES,
    UDP_TABLES,
    InetSocket,
    ends_outside,
    node_addresses,
    read_tables,
)
from slurmckpt.capture.unixdiag import UnixSocket, unix_sockets
from slurmckpt.errors import one_line

_NAMESPACES = ("user", "mnt", "net", "ipc", "uts", "cgroup")
# dump_one_file() in CRIU's files.c
_ANONYMOUS = frozenset({"eventfd", "eventpoll", "fanotify", "inotify", "pidfd", "signalfd", "timerfd"})
# Linux Documentation/admin-guide/devices.txt: null, zero, full, random, urandom; tty and ptmx
_DEVICES = frozenset({(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)})
_ZERO = (1, 5)
_PTMX = (5, 2)
_TERMINAL_MAJORS = range(136, 144)
_GPU_PREFIXES = ("/dev/nvidia", "/dev/dri/", "/dev/kfd")
# can_dump_ipproto() in CRIU's sk-inet.c: IP, ICMP, TCP, UDP, UDPLITE, ICMPV6
_INET_PROTOCOLS = frozenset({0, 1, 6, 17, 58, 136})
_IPPROTO_MPTCP = 262
_SHOWN = 120


@dataclass(frozen=True)
class Limits:
    """How much of a pod is looked at; a pod with more is refused. refusals: how many sentences are made at most."""

    processes: int = 8192
    descriptors: int = 262144
    refusals: int = 20


@dataclass(frozen=True)
class OpenFile:
    """A regular file of the pod's own mounts that is open for writing, or mapped shared and writable.

    path: inside the pod. size: bytes. mode: st_mode. flags: of open(2) (O_RDWR for a mapping). pid: on this node.
    fd: -1 for a mapping.
    """

    path: str
    size: int
    mode: int
    flags: int
    pid: int
    fd: int
    device: int
    inode: int


@dataclass(frozen=True)
class Connection:
    """A TCP connection that leaves the pod.

    local, remote: `address:port`. pid: on this node. state: as in Linux include/net/tcp_states.h.
    """

    local: str
    remote: str
    pid: int
    comm: str
    inode: int
    state: int


@dataclass(frozen=True)
class PodScan:
    """What one look at a pod found.

    processes: the leader and its descendants. refusals: one sentence each; empty when nothing speaks against a capture.

    open_files: one entry a file. addresses: local addresses, other than loopback and wildcard, that inet sockets are
    bound to. external: CRIU's keys of the descriptors that come from outside. outside: TCP connections that end
    outside the pod. notes: what is unusual but no reason to refuse. inside: both ends, (local, remote), of each
    connection that does not.
    """

    processes: list[Process]
    refusals: list[str]
    open_files: list[OpenFile]
    addresses: list[str]
    external: list[str]
    outside: list[Connection]
    notes: list[str]
    inside: list[tuple[str, str]] = field(default_factory=list)


def scan(init_pid: int, leader_pid: int, known: Container[str] = frozenset(), limits: Limits | None = None) -> PodScan:
    """Look at the pod of `init_pid`. Pids are those of this node.

    known: CRIU's external keys (`file[MNT_HEX:INO_HEX]`, `pipe:[INODE]`) of the descriptors that will be given again
    at a restore. Any other descriptor from outside is a refusal. Blocks while a file system does not answer: call it
    in a thread. Raises SlurmckptError when the pod is gone, OSError when /proc cannot be read.
    """
    return _Scan(init_pid, leader_pid, known, limits or Limits()).run()


class _Scan:
    def __init__(self, init_pid: int, leader_pid: int, known: Container[str], limits: Limits) -> None:
        self.init_pid = init_pid
        self.leader_pid = leader_pid
        self.known = known
        self.limits = limits
        self.refusals = Refusals()
        self.notes: list[str] = []
        self.open_files: dict[tuple[int, int, str], OpenFile] = {}
        self.external: dict[str, None] = {}

    def run(self) -> PodScan:
        tree = walk(self.init_pid, self.leader_pid)
        processes = tree.members[: self.limits.processes]
        mounts = mounts_of(self.init_pid)
        descriptors = read_descriptors(processes, self.limits.descriptors)
        network = _Network(self.init_pid, descriptors)
        if self._leads_out(descriptors, network):
            again = walk(self.init_pid, self.leader_pid).members[: self.limits.processes]
            descriptors.confirm(read_descriptors(again, self.limits.descriptors))
            network = _Network(self.init_pid, descriptors)

        self._check_processes(tree)
        self._check_anonymous(descriptors)
        self._check_files(descriptors, mounts)
        if self._check_size(tree, descriptors):
            self._check_pipes(descriptors)
            self._check_unix_sockets(descriptors, network)
        self._check_bound_sockets(descriptors, network)
        self._check_other_sockets(descriptors, network)
        for process in processes:
            self._check_mappings(process, read_mappings(process))
        return PodScan(
            processes=processes,
            refusals=self.refusals.sentences(self.limits.refusals),
            open_files=list(self.open_files.values()),
            addresses=node_addresses([*network.tcp, *network.udp]),
            external=list(self.external),
            outside=[self._connection(one, descriptors) for one in network.outside()],
            notes=self.notes,
            inside=[(str(one.local), str(one.remote)) for one in network.inside()],
        )

    def _leads_out(self, descriptors: Descriptors, network: _Network) -> bool:
        """Whether anything that is not expected seems to have an end outside the pod."""
        pipes = any(_pipe_key(inode) not in self.known for inode, _, _ in _half_pipes(descriptors))
        return pipes or bool(network.outside()) or any(True for _ in network.unix_peers_outside())

    def _check_size(self, tree: Tree, descriptors: Descriptors) -> bool:
        """Refuse a pod that was not looked at as a whole. Returns whether it was."""
        what = ""
        if len(tree.members) > self.limits.processes:
            what = f"and the rest of the pod are more than {self.limits.processes} processes"
        elif not descriptors.complete:
            what = f"and the rest of the pod hold more than {self.limits.descriptors} descriptors"
        if what:
            self.refusals.add(tree.members[0], what, "the pod is too large to be looked at before a capture")
        return not what

    def _check_processes(self, tree: Tree) -> None:
        for process in tree.nested:
            self.refusals.add(
                process,
                "runs in a PID namespace that was made inside the pod, which cannot be captured",
                "start it without a container or sandbox of its own",
            )
        expected = {name: self._namespace(self.init_pid, name) for name in _NAMESPACES}
        for process in tree.members:
            if process.tracer:
                self.refusals.add(
                    process, f"is being traced by {name_of(process.tracer)}", "detach the debugger or tracer first"
                )
            if process.state == "D":
                self.notes.append(f"{process} waits for a device or a file system (state D)")
            for name, home in expected.items():
                here = self._namespace(process.pid, name)
                # A process that has ended but was not waited for has no namespaces.
                if here is not None and here != home:
                    self.refusals.add(
                        process,
                        f"is in another {name} namespace than the pod, which cannot be captured",
                        "start it without a container or sandbox of its own",
                    )

    @staticmethod
    def _namespace(pid: int, name: str) -> str | None:
        return procfs.link(f"{procfs.PROC}/{pid}/ns/{name}")

    def _check_anonymous(self, descriptors: Descriptors) -> None:
        for holder, name in descriptors.anonymous:
            if name == "io_uring":
                self._refuse_io_uring(holder.process)
            elif name not in _ANONYMOUS:
                self.refusals.add(
                    holder.process,
                    f"holds a descriptor of the kind {one_line(name, 40)}, which cannot be captured",
                    "close it before a checkpoint",
                )

    def _refuse_io_uring(self, process: Process) -> None:
        self.refusals.add(
            process,
            "uses io_uring, which cannot be captured",
            'let slurmckpt deny it (io_uring = "deny", programs fall back to epoll), or set USE_LIBUV=0 for PyTorch',
        )

    def _check_files(self, descriptors: Descriptors, mounts: dict[int, str]) -> None:
        masters = {index for one in descriptors.files if (index := _terminal_index(one)) is not None}
        for one in descriptors.files:
            if one.is_device and self._refuses_device(one, masters, mounts):
                continue
            if one.is_anonymous_memory:
                continue
            if one.mount not in mounts:
                self._note_external(one.key, one.holder, _named(one.path))
            elif one.is_written and mounts[one.mount] not in KERNEL_FILE_SYSTEMS:
                self._note_open(one.path, one.status, one.flags, one.holder)

    def _note_open(self, path: str, status: os.stat_result, flags: int, holder: Holder) -> None:
        self.open_files.setdefault(
            (status.st_dev, status.st_ino, path),
            OpenFile(
                path,
                status.st_size,
                status.st_mode,
                flags,
                holder.process.pid,
                holder.descriptor,
                status.st_dev,
                status.st_ino,
            ),
        )

    def _note_external(self, key: str, holder: Holder, thing: str) -> None:
        self.external.setdefault(key)
        if key not in self.known:
            self.refusals.add(
                holder.process,
                f"holds {thing} (descriptor {holder.descriptor}), which was opened outside the pod and cannot be given"
                " back at a restore",
                "close it, or open it in the program itself",
            )

    def _refuses_device(self, one: FileDescriptor, masters: Container[int], mounts: Container[int]) -> bool:
        """Refuse the device unless CRIU can dump it. Returns whether it was refused."""
        process, path = one.holder.process, one.path
        number = (os.major(one.status.st_rdev), os.minor(one.status.st_rdev))
        if number[0] in _TERMINAL_MAJORS:
            index = (number[0] - _TERMINAL_MAJORS.start) * 256 + number[1]
            if index in masters and one.mount in mounts:
                return False
            self.refusals.add(
                process,
                f"uses the terminal {one_line(path, _SHOWN)} from outside the pod, which cannot be captured",
                "run it without a terminal (srun gives one with --pty and --unbuffered)",
            )
            return True
        if stat.S_ISCHR(one.status.st_mode) and number in _DEVICES:
            return False
        self._refuse_device(process, path, "open")
        return True

    def _refuse_device(self, process: Process, path: str, state: str) -> None:
        shown = one_line(path, _SHOWN)
        if path.startswith("/dev/infiniband/"):
            what = f"has the InfiniBand device {shown} {state}, which cannot be captured"
            remedy = "set NCCL_IB_DISABLE=1 (and UCX_TLS=tcp,self,sm for UCX) so that the ranks talk over TCP"
        elif path.startswith(_GPU_PREFIXES):
            what, remedy = f"has the GPU device {shown} {state}", "GPU capture is not part of this version"
        else:
            what = f"has the device {shown} {state}, which cannot be captured"
            remedy = "close it before a checkpoint"
        self.refusals.add(process, what, remedy)

    def _check_pipes(self, descriptors: Descriptors) -> None:
        for inode, holder, reading in _half_pipes(descriptors):
            key = _pipe_key(inode)
            # A pipe whose other end nobody holds any more is complete as it is: CRIU brings it back with one end.
            if key in self.known or other_end_lives(inode, holder, reading):
                verb = "reads from" if reading else "writes to"
                self._note_external(key, holder, f"a pipe that it {verb}")

    def _check_unix_sockets(self, descriptors: Descriptors, network: _Network) -> None:
        outside = list(network.unix_peers_outside())
        holders = _holders_on_node(
            {peer for _, peer in outside if peer}, {h.process.pid for h in descriptors.sockets.values()}
        )
        for mine, peer in outside:
            other = holders.get(peer)
            if peer and other is None:
                # Nobody holds the other end: it is on its way inside a message, or has been closed since.
                continue
            named = _socket_name(mine, network.unix.get(peer))
            whom = name_of(other) if other is not None else "a process that has not accepted it yet,"
            self.refusals.add(
                descriptors.sockets[mine.inode].process,
                f"is connected by a unix socket{named} to {whom} outside the pod, which cannot be captured",
                "close the connection before a checkpoint, or do not use the service behind it",
            )

    def _check_bound_sockets(self, descriptors: Descriptors, network: _Network) -> None:
        """At a restore CRIU, as root, makes the socket anew at its path and changes its owner there, by name.

        In a directory that the user may change, a link could stand in the place of either by then.
        """
        for inode, holder in descriptors.sockets.items():
            one = network.unix.get(inode)
            if one is None or not one.name or one.name.startswith("@"):
                continue
            if not _only_root_changes(self.init_pid, os.path.dirname(one.name)):
                self.refusals.add(
                    holder.process,
                    f"has a unix socket at {one_line(one.name, _SHOWN)}, in a directory that its user may change",
                    "bind it in /tmp or /dev/shm itself, or use an abstract name",
                )

    def _check_other_sockets(self, descriptors: Descriptors, network: _Network) -> None:
        for inode, holder in descriptors.sockets.items():
            if inode in network.unix or inode in network.inet_inodes:
                continue
            try:
                self._check_unlisted_socket(inode, holder)
            except OSError as error:
                if procfs.is_gone(error) or error.errno == errno.EBADF:
                    continue
                self.notes.append(f"{holder.process} has a socket that could not be looked at: {error.strerror}")

    def _check_unlisted_socket(self, inode: int, holder: Holder) -> None:
        """A socket in none of the tables: unconnected, of another family, or made in another network namespace."""
        pidfd = os.pidfd_open(holder.process.pid)
        try:
            descriptor = procfs.borrow_descriptor(pidfd, holder.descriptor)
        finally:
            os.close(pidfd)
        if os.fstat(descriptor).st_ino != inode:
            os.close(descriptor)
            return
        with socket.socket(fileno=descriptor) as one:
            what, remedy = _judge(one)
        if what:
            self.refusals.add(holder.process, what, remedy)

    def _check_mappings(self, process: Process, mappings: Mappings) -> None:
        if mappings.io_uring:
            self._refuse_io_uring(process)
        for path, status in mappings.devices:
            if (os.major(status.st_rdev), os.minor(status.st_rdev)) != _ZERO:
                self._refuse_device(process, path, "mapped")
        for one in mappings.files:
            if one.status.st_nlink and not one.path.endswith(" (deleted)"):
                self._note_open(one.path, one.status, os.O_RDWR, Holder(process, -1))

    def _connection(self, one: InetSocket, descriptors: Descriptors) -> Connection:
        process = descriptors.sockets[one.inode].process
        return Connection(str(one.local), str(one.remote), process.pid, process.comm, one.inode, one.state)


class _Network:
    """The sockets of the pod among those of its network namespace."""

    def __init__(self, init_pid: int, descriptors: Descriptors) -> None:
        self.mine = descriptors.sockets
        self._steady = descriptors.sockets.keys() if descriptors.steady is None else descriptors.steady
        self.tcp: list[InetSocket] = []
        self.udp: list[InetSocket] = []
        self.unix: dict[int, UnixSocket] = {}
        self._outside: list[InetSocket] = []
        if self.mine:
            self.tcp = read_tables(init_pid, TCP_TABLES, self.mine)
            self.udp = read_tables(init_pid, UDP_TABLES, self.mine)
            self.unix = unix_sockets(init_pid)
            self._outside = ends_outside(self.tcp, [])
        if self._outside:
            # Only now: on a busy node the closing connections are by far the most lines.
            self._outside = ends_outside(self.tcp, read_tables(init_pid, TCP_TABLES, {0}))
        self.inet_inodes = {one.inode for one in [*self.tcp, *self.udp]}

    def outside(self) -> list[InetSocket]:
        """Connections of the pod that end outside."""
        return [one for one in self._outside if one.inode in self._steady]

    def inside(self) -> list[InetSocket]:
        """Connections that do not, each from both of its ends."""
        out = {one.inode for one in self._outside}
        return [one for one in self.tcp if one.connected and one.inode not in out]

    def unix_peers_outside(self) -> Iterator[tuple[UnixSocket, int]]:
        """Sockets of the pod with a peer outside, and the peer's inode: 0 when it waits to be accepted."""
        acceptors = {waiting: one.inode for one in self.unix.values() for waiting in one.waiting}
        for inode in self._steady:
            one = self.unix.get(inode)
            if one is None or one.peer is None:
                continue
            peer = one.peer or acceptors.get(inode, inode)
            if peer not in self.mine:
                yield one, one.peer


def _half_pipes(descriptors: Descriptors) -> Iterator[tuple[int, Holder, bool]]:
    """The pipes of which the pod holds one end only: inode, a holder, whether it is the reading end."""
    for inode, ends in descriptors.pipes.items():
        if bool(ends.readers) != bool(ends.writers):
            yield inode, (ends.readers or ends.writers)[0], bool(ends.readers)


def _pipe_key(inode: int) -> str:
    return f"pipe:[{inode}]"


def _named(path: str) -> str:
    return one_line(path, _SHOWN) if path else "a file with a path of more than a page"


def _socket_name(mine: UnixSocket, peer: UnixSocket | None) -> str:
    name = mine.name or (peer.name if peer is not None else "")
    return f" ({one_line(name, _SHOWN)})" if name else ""


def _terminal_index(one: FileDescriptor) -> int | None:
    """The number of the terminal that a descriptor of /dev/ptmx is the master of."""
    number = (os.major(one.status.st_rdev), os.minor(one.status.st_rdev))
    if not stat.S_ISCHR(one.status.st_mode) or number != _PTMX:
        return None
    text = procfs.read(f"{procfs.PROC}/{one.holder.process.pid}/fdinfo/{one.holder.descriptor}") or b""
    match = re.search(rb"^tty-index:\s*(\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else None


def _holders_on_node(inodes: set[int], without: Container[int]) -> dict[int, int]:
    """Socket inode -> pid of a process of this node that holds it.

    It looks at every descriptor of the node, so it is for messages only.
    """
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, int] = {}
    for name in procfs.names(procfs.PROC):
        if len(found) == len(inodes):
            break
        if not name.isdigit() or int(name) in without:
            continue
        directory = f"{procfs.PROC}/{name}/fd"
        try:
            targets = [procfs.link(f"{directory}/{number}") for number in procfs.names(directory)]
        except PermissionError:
            continue
        for target in targets:
            if target in wanted:
                found.setdefault(wanted[target], int(name))
    return found


def _judge(one: socket.socket) -> tuple[str, str]:
    """What is wrong with a socket that is in none of the tables, and the way out; two empty texts when nothing is."""
    remedy = "close it before a checkpoint"
    if one.family in (socket.AF_INET, socket.AF_INET6):
        if one.type == socket.SOCK_RAW or one.proto in _INET_PROTOCOLS:
            return "", ""
        if one.proto == _IPPROTO_MPTCP:
            return (
                "has a multipath TCP socket open, which cannot be captured",
                "for a Go program set GODEBUG=multipathtcp=0",
            )
        return f"has a socket of the IP protocol {one.proto} open, which cannot be captured", remedy
    if one.family == socket.AF_UNIX:
        if _peer(one) is None:
            return "", ""
        return "is connected by a unix socket that was made in another network namespace", remedy
    if one.family == socket.AF_NETLINK:
        peer = _peer(one)
        if not isinstance(peer, tuple) or peer[0] == 0:
            return "", ""
        return f"has a netlink socket that is connected to port {peer[0]}, which cannot be captured", remedy
    if one.family == socket.AF_PACKET:
        return "has a packet socket open, which cannot be captured", "stop the network capture before a checkpoint"
    return f"has a socket of the address family {int(one.family)} open, which cannot be captured", remedy


def _peer(one: socket.socket) -> object | None:
    """The address at the other end, None when the socket is not connected."""
    try:
        found: object = one.getpeername()
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            return None
        raise
    return found


def _only_root_changes(init_pid: int, directory: str) -> bool:
    """Whether no directory of this path, as the pod sees it, can be replaced or emptied by anybody but root."""
    if not directory.startswith("/"):
        return False
    parts = [part for part in directory.split("/") if part]
    for count in range(len(parts) + 1):
        try:
            status = os.lstat(f"{procfs.PROC}/{init_pid}/root/{'/'.join(parts[:count])}")
        except OSError:
            return False
        shared = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0 or shared:
            return False
    return True
