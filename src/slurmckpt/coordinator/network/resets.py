"""Resets the connections of a restored pod that lead outside: nobody is at their other end any more.

Called while the sockets exist and are still silent (TCP_REPAIR, see criu.RestoreHooks). What the pod had received and
not read yet can still be read after the kernel has destroyed the connection; then the program sees ECONNABORTED, or
ECONNRESET where the kernel cannot destroy connections (CONFIG_INET_DIAG_DESTROY) and we disconnect them instead.

Only connections from which more could come are reset. One that the other side had closed (CLOSE_WAIT) gives its rest
and its end of file, exactly as it would have; whatever is sent on it is answered with a reset. One that is only being
opened (SYN_SENT) goes on opening.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.sockets import Endpoint, plain
from slurmckpt.capture.inspect.unixdiag import in_network_namespace
from slurmckpt.capture.processes import pod_processes

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h, net/tcp_states.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_SOCK_DESTROY = 21
_NLM_F_REQUEST = 0x1
_NLM_F_ACK = 0x4
_NLM_F_DUMP = 0x300
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_ESTABLISHED, _FIN_WAIT1, _FIN_WAIT2 = 1, 4, 5
_LISTEN = 10
_STATES = 1 << _ESTABLISHED | 1 << _FIN_WAIT1 | 1 << _FIN_WAIT2
_ALL_STATES = 0xFFF & ~(1 << _LISTEN)
_HEADER = struct.Struct("=IHHII")
# struct inet_diag_req_v2: family, protocol, extensions, padding, states; then struct inet_diag_sockid.
_REQUEST = struct.Struct("=BBBxI")
# struct inet_diag_msg: family, state, timer, retransmits; struct inet_diag_sockid; expires, queues, uid, inode.
_MESSAGE = struct.Struct("=BBxx48s4xIIII")
# struct inet_diag_sockid: ports, addresses (network byte order), interface, cookie.
_IDENTITY = struct.Struct("!HH16s16s12x")
_TIMEOUT = 5.0
# The connection has ended by itself; a listening socket of the same address is there (its cookie is another).
_ENDED = (errno.ENOENT, errno.ESTALE)

Ends = tuple[Endpoint, Endpoint]


@dataclass(frozen=True)
class _Found:
    """A connection as the kernel knows it. identity: struct inet_diag_sockid, with the cookie."""

    family: int
    identity: bytes
    ends: Ends
    inode: int


def reset(pod_init: int, connections: Iterable[tuple[str, str]]) -> int:
    """Reset these connections (local and remote end, `address:port`) in the pod's network namespace.

    Gives how many there were to reset. Raises OSError when one could not be, ValueError for an end that is none.
    """
    wanted = {(endpoint(local), endpoint(remote)) for local, remote in connections}
    if not wanted:
        return 0
    left = in_network_namespace(pod_init, lambda: [one for one in _connections() if one.ends in wanted])
    try:
        in_network_namespace(pod_init, lambda: _destroy(left))
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        disconnect(pod_init, {one.inode for one in left})
    return len(left)


def remove(pod_init: int, connections: Iterable[tuple[str, str]]) -> int:
    """Remove what the kernel has left of these connections after their processes were killed; gives what it keeps.

    A closed connection keeps its port for up to a minute (TIME_WAIT), and a restore could not bind it. Where the kernel
    cannot destroy connections, only time removes them. Raises OSError, and ValueError for an end that is none.
    """
    wanted = {(endpoint(local), endpoint(remote)) for local, remote in connections}

    def look() -> list[_Found]:
        return [one for one in _connections(_ALL_STATES) if one.ends in wanted]

    if not wanted or not (left := in_network_namespace(pod_init, look)):
        return 0
    with contextlib.suppress(OSError):
        in_network_namespace(pod_init, lambda: _destroy(left))
    return len(in_network_namespace(pod_init, look))


def endpoint(text: str) -> Endpoint:
    """`10.0.0.1:80` or `[fd00::1]:80`, as str(Endpoint) writes it. Raises ValueError."""
    address, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r} is not ADDRESS:PORT")
    if address.startswith("[") and address.endswith("]"):
        return Endpoint(ipaddress.IPv6Address(address[1:-1]), int(port))
    return Endpoint(ipaddress.IPv4Address(address), int(port))


def disconnect(pod_init: int, inodes: set[int]) -> None:
    """Disconnect the sockets with these inodes that processes of the pod hold: connect(2) to AF_UNSPEC. Raises OSError.

    The kernel drops what they had received, and the next call on each fails with ECONNRESET.
    """
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in pod_processes(pod_init):
        directory = f"{procfs.PROC}/{process.pid}/fd"
        for number in procfs.names(directory):
            target = procfs.link(f"{directory}/{number}")
            if target in wanted:
                _disconnect_one(process.pid, int(number))
                # Every process that has it has the same one.
                wanted.remove(target)


def _disconnect_one(pid: int, number: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    unspecified = struct.pack("=H14x", socket.AF_UNSPEC)
    pidfd = os.pidfd_open(pid)
    try:
        descriptor = procfs.borrow_descriptor(pidfd, number)
    finally:
        os.close(pidfd)
    try:
        if libc.connect(descriptor, unspecified, len(unspecified)) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), "connect to AF_UNSPEC")
    finally:
        os.close(descriptor)


def _connections(states: int = _STATES) -> list[_Found]:
    """All TCP connections of this network namespace in these states, by default those from which more could come."""
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, states) + bytes(_IDENTITY.size)
        # ENOENT: a kernel without this family.
        with _diagnosis() as netlink, contextlib.suppress(FileNotFoundError):
            netlink.send(_message(_SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST | _NLM_F_DUMP, request))
            for kind, body in _answers(netlink):
                if kind == _SOCK_DIAG_BY_FAMILY and len(body) >= _MESSAGE.size:
                    found.append(_parse(body))
    return found


def _destroy(connections: Iterable[_Found]) -> None:
    with _diagnosis() as netlink:
        for one in connections:
            # With the cookie: without it, the kernel would take a listening socket where the connection is gone.
            request = _REQUEST.pack(one.family, socket.IPPROTO_TCP, 0, _STATES) + one.identity
            netlink.send(_message(_SOCK_DESTROY, _NLM_F_REQUEST | _NLM_F_ACK, request))
            try:
                for _ in _answers(netlink):
                    pass
            except OSError as error:
                if error.errno not in _ENDED:
                    raise


def _diagnosis() -> socket.socket:
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    netlink.settimeout(_TIMEOUT)
    netlink.connect((0, 0))
    return netlink


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body


def _answers(netlink: socket.socket) -> Iterator[tuple[int, bytes]]:
    """What the kernel answers, up to the message that ends it. Raises OSError when that is an error."""
    while True:
        data = netlink.recv(1 << 18)
        offset = 0
        while offset + _HEADER.size <= len(data):
            length, kind, _, _, _ = _HEADER.unpack_from(data, offset)
            body = data[offset + _HEADER.size : offset + length]
            if kind == _NLMSG_ERROR:
                code = -struct.unpack_from("=i", body)[0]
                if code:
                    raise OSError(code, os.strerror(code), "sock_diag")
                return
            if kind == _NLMSG_DONE:
                return
            yield kind, body
            offset += max(_HEADER.size, (length + 3) & ~3)


def _parse(body: bytes) -> _Found:
    family, _, identity, _, _, _, inode = _MESSAGE.unpack_from(body)
    local_port, remote_port, local, remote = _IDENTITY.unpack(identity)
    size = 4 if family == socket.AF_INET else 16
    ends = (
        Endpoint(plain(ipaddress.ip_address(local[:size])), local_port),
        Endpoint(plain(ipaddress.ip_address(remote[:size])), remote_port),
    )
    return _Found(family, identity, ends, inode)
