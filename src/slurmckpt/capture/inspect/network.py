"""The sockets of a pod among those of its network namespace, and where their other ends are."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from slurmckpt.capture import procfs
from slurmckpt.capture.failedsockets import has_failed
from slurmckpt.capture.inspect.descriptors import Descriptors, Holder
from slurmckpt.capture.inspect.sockets import (
    UDP_TABLES,
    InetSocket,
    ends_outside,
    node_addresses,
    read_tables,
)
from slurmckpt.capture.inspect.tcpdiag import tcp_sockets
from slurmckpt.capture.inspect.unixdiag import UnixSocket, unix_sockets

# FIN_WAIT1, LAST_ACK, CLOSING (include/net/tcp_states.h): closed, and the end has not arrived yet at the other side.
_UNDELIVERED = frozenset({4, 9, 11})
_SYN_RECEIVED = 3


@dataclass(frozen=True)
class OtherSocket:
    """A socket in none of the tables: unconnected, of another family, or made in another network namespace.

    family, type, protocol: as of socket(2). peer: what getpeername(2) answers, None when it is not connected.
    receives_packets: of AF_PACKET, whether it has a protocol; without one it gets nothing (packet(7)). has_failed:
    whether its connection has, and its program does not know yet (`failedsockets`).
    """

    holder: Holder
    family: int
    type: int
    protocol: int
    peer: object | None
    receives_packets: bool = False
    has_failed: bool = False


class Network:
    """A look at the sockets.

    mine: who holds them, by inode. unread: connections of the pod whose other end was closed while the kernel still
    held something that it has to deliver. untaken: those whose other end is not made before something is sent
    (TCP_DEFER_ACCEPT, tcp(7)).
    """

    def __init__(self, init_pid: int, descriptors: Descriptors) -> None:
        self.mine = descriptors.sockets
        self._steady = descriptors.sockets.keys() if descriptors.steady is None else descriptors.steady
        self.tcp: list[InetSocket] = []
        self.udp: list[InetSocket] = []
        self.unix: dict[int, UnixSocket] = {}
        self._outside: list[InetSocket] = []
        self.in_messages: set[int] = set()
        if self.mine:
            self.tcp = tcp_sockets(init_pid, self.mine)
            self.udp = read_tables(init_pid, UDP_TABLES, self.mine)
            self.unix = unix_sockets(init_pid)
            self._outside = ends_outside(self.tcp, [])
        self.unread: list[InetSocket] = []
        self.untaken: list[InetSocket] = []
        if self._outside:
            # Only now: on a busy node the closing connections are by far the most lines.
            closing = tcp_sockets(init_pid, {0})
            self._outside = ends_outside(self.tcp, closing)
            self.unread = self._opposite(one for one in closing if one.state in _UNDELIVERED)
            self.untaken = self._opposite(one for one in closing if one.state == _SYN_RECEIVED)

    def _opposite(self, ends: Iterable[InetSocket]) -> list[InetSocket]:
        """The connections of the pod whose other end is one of these."""
        wanted = {(one.remote, one.local) for one in ends}
        return [one for one in self.tcp if one.connected and (one.local, one.remote) in wanted]

    def end_inside(self, inodes: Collection[int]) -> None:
        """The connections of these sockets end inside, in a message that nobody has received yet (`in_messages`)."""
        self.in_messages = set(inodes)
        self._outside = [one for one in self._outside if one.inode not in inodes]

    def outside(self) -> list[InetSocket]:
        """TCP connections of the pod that end outside."""
        return [one for one in self._outside if one.inode in self._steady]

    def inside(self) -> list[InetSocket]:
        """TCP connections that do not, each from both of its ends."""
        out = {one.inode for one in self._outside}
        return [one for one in self.tcp if one.connected and one.inode not in out]

    def addresses(self) -> list[str]:
        """The local addresses, other than loopback and wildcard, that inet sockets are bound to."""
        return node_addresses([*self.tcp, *self.udp])

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

    def others(self, notes: list[str]) -> list[OtherSocket]:
        """The sockets of the pod that are in none of the tables. What could not be looked at goes into `notes`."""
        listed = {one.inode for one in [*self.tcp, *self.udp]}
        found: list[OtherSocket] = []
        for inode, holder in self.mine.items():
            if inode in self.unix or inode in listed:
                continue
            try:
                other = _look_at(inode, holder)
            except OSError as error:
                if not (procfs.is_gone(error) or error.errno == errno.EBADF):
                    notes.append(f"{holder.process} has a socket that could not be looked at: {error.strerror}")
                continue
            if other is not None:
                found.append(other)
        return found


def _look_at(inode: int, holder: Holder) -> OtherSocket | None:
    """None when the descriptor is another one by now. Raises OSError."""
    pidfd = os.pidfd_open(holder.process.pid)
    try:
        descriptor = procfs.borrow_descriptor(pidfd, holder.descriptor)
    finally:
        os.close(pidfd)
    if os.fstat(descriptor).st_ino != inode:
        os.close(descriptor)
        return None
    with socket.socket(fileno=descriptor) as one:
        packets = one.family == socket.AF_PACKET and one.getsockname()[1] != 0
        failed = one.family in (socket.AF_INET, socket.AF_INET6) and has_failed(one)
        return OtherSocket(holder, int(one.family), int(one.type), one.proto, _peer(one), packets, failed)


def _peer(one: socket.socket) -> object | None:
    try:
        found: object = one.getpeername()
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.EOPNOTSUPP):
            return None
        raise
    return found
