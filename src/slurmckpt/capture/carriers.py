"""Carriers of output: what descriptors they have, and the connections between them (capture/drain.py says what for)."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.sockets import Endpoint
from slurmckpt.capture.inspect.unixdiag import unix_sockets
from slurmckpt.capture.processes import name_of


@dataclass(frozen=True)
class Carrier:
    """A process that passes output on. pidfd: leads to this very process. name: for messages."""

    pid: int
    pidfd: int
    name: str


@dataclass(frozen=True)
class End:
    """One end of a connection between carriers. descriptor: a duplicate of ours. owners: pids that hold it."""

    inode: int
    descriptor: int
    owners: frozenset[int]


@dataclass(frozen=True)
class Table:
    """What the descriptors of one carrier are: number -> target of the link in /proc/PID/fd."""

    carrier: Carrier
    targets: dict[int, str]

    def inodes(self, kind: str) -> dict[int, int]:
        """Inode -> number, for the targets `kind:[inode]`."""
        prefix = f"{kind}:["
        return {int(t[len(prefix) : -1]): fd for fd, t in self.targets.items() if t.startswith(prefix)}


def connections(tables: Sequence[Table], stack: contextlib.ExitStack) -> Iterator[tuple[End, End]]:
    """Both directions of every connection of which both ends are held by carriers: (sender, receiver).

    Their descriptors are closed with `stack`. Raises OSError.
    """
    holders: dict[int, list[tuple[Carrier, int]]] = {}
    for table in tables:
        for inode, fd in table.inodes("socket").items():
            holders.setdefault(inode, []).append((table.carrier, fd))
    names: dict[int, tuple[Endpoint, Endpoint]] = {}
    unix: set[int] = set()
    for inode, held in holders.items():
        carrier, fd = held[0]
        with _borrowed(carrier, fd) as one:
            if one is None or one.type not in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
                continue
            if one.family == socket.AF_UNIX:
                unix.add(inode)
            elif one.family in (socket.AF_INET, socket.AF_INET6) and (pair := _endpoints(one)) is not None:
                names[inode] = pair
    by_name = {pair: inode for inode, pair in names.items()}
    pairs = {inode: by_name[pair[::-1]] for inode, pair in names.items() if pair[::-1] in by_name}
    if unix:
        for namespace in _one_carrier_a_namespace(tables):
            table_of_node = unix_sockets(namespace)
            for inode in unix & table_of_node.keys():
                peer = table_of_node[inode].peer
                if peer in unix:
                    pairs[inode] = peer
    ends: dict[int, End] = {}
    for inode in pairs:
        carrier, fd = holders[inode][0]
        try:
            duplicate = procfs.borrow_descriptor(carrier.pidfd, fd)
        except OSError as error:
            if procfs.is_gone(error) or error.errno == errno.EBADF:
                continue
            raise
        stack.callback(os.close, duplicate)
        ends[inode] = End(inode, duplicate, frozenset(c.pid for c, _ in holders[inode]))
    for inode, peer in pairs.items():
        if inode != peer and inode in ends and peer in ends:
            yield ends[inode], ends[peer]


@contextlib.contextmanager
def _borrowed(carrier: Carrier, descriptor: int) -> Iterator[socket.socket | None]:
    """A duplicate of a carrier's socket, to be given back at once: held, it keeps the connection open."""
    try:
        duplicate = procfs.borrow_descriptor(carrier.pidfd, descriptor)
    except OSError as error:
        if procfs.is_gone(error) or error.errno == errno.EBADF:
            yield None
            return
        raise
    try:
        one = socket.socket(fileno=duplicate)
    except OSError:
        # Not a socket any more: the number was used again.
        os.close(duplicate)
        yield None
        return
    with one:
        yield one


def _endpoints(one: socket.socket) -> tuple[Endpoint, Endpoint] | None:
    try:
        return Endpoint.of(one.getsockname()), Endpoint.of(one.getpeername())
    except OSError:
        return None


def _one_carrier_a_namespace(tables: Sequence[Table]) -> list[int]:
    found: dict[str, int] = {}
    for table in tables:
        namespace = procfs.link(f"{procfs.PROC}/{table.carrier.pid}/ns/net")
        if namespace:
            found.setdefault(namespace, table.carrier.pid)
    return list(found.values())


def readable_pipes(table: Table) -> dict[int, int]:
    """Inode -> descriptor of the reading ends of pipes."""
    found: dict[int, int] = {}
    for fd, target in table.targets.items():
        if target.startswith("pipe:["):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if os.lstat(f"{procfs.PROC}/{table.carrier.pid}/fd/{fd}").st_mode & stat.S_IRUSR:
                    found[inode_of(target)] = fd
    return found


def inode_of(target: str) -> int:
    """Of a link as `pipe:[7]`; 0 for another one."""
    number = target.partition("[")[2].rstrip("]")
    return int(number) if number.isdigit() else 0


def table_of(carrier: Carrier) -> Table:
    """As it is now."""
    directory = f"{procfs.PROC}/{carrier.pid}/fd"
    links = {int(name): procfs.link(f"{directory}/{name}") for name in procfs.names(directory)}
    return Table(carrier, {fd: target for fd, target in links.items() if target is not None})


def open_carrier(pid: int, stack: contextlib.ExitStack) -> Carrier | None:
    """With a pidfd that is closed with `stack`; None when it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    stack.callback(os.close, pidfd)
    return Carrier(pid, pidfd, name_of(pid))


def is_alive(carrier: Carrier) -> bool:
    """Whether it still is, or is a zombie."""
    try:
        signal.pidfd_send_signal(carrier.pidfd, 0)
    except ProcessLookupError:
        return False
    return True
