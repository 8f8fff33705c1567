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
from collections.abc import Container, Iterable

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.sockdiag import in_network_namespace
from slurmckpt.capture.inspect.sockets import Endpoint
from slurmckpt.capture.inspect.tcpdiag import Diagnosed, destroy, diagnosed
from slurmckpt.capture.processes import pod_processes

# include/net/tcp_states.h
_ESTABLISHED, _FIN_WAIT1, _FIN_WAIT2 = 1, 4, 5
_LISTEN = 10
_STATES = 1 << _ESTABLISHED | 1 << _FIN_WAIT1 | 1 << _FIN_WAIT2
_ALL_STATES = 0xFFF & ~(1 << _LISTEN)
# The connection has ended by itself; a listening socket of the same address is there (its cookie is another).
_ENDED = (errno.ENOENT, errno.ESTALE)


def reset(pod_init: int, connections: Iterable[tuple[str, str]]) -> int:
    """Reset these connections (local and remote end, `address:port`) in the pod's network namespace.

    Gives how many there were to reset. Raises OSError when one could not be, ValueError for an end that is none.
    """
    wanted = {(endpoint(local), endpoint(remote)) for local, remote in connections}
    if not wanted:
        return 0
    left = in_network_namespace(pod_init, lambda: _connections(wanted))
    try:
        in_network_namespace(pod_init, lambda: _destroy(left))
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        disconnect(pod_init, {one.socket.inode for one in left})
    return len(left)


def remove(pod_init: int, connections: Iterable[tuple[str, str]]) -> int:
    """Remove what the kernel has left of these connections after their processes were killed; gives what it keeps.

    A closed connection keeps its port for up to a minute (TIME_WAIT), and a restore could not bind it. Where the kernel
    cannot destroy connections, only time removes them. Raises OSError, and ValueError for an end that is none.
    """
    wanted = {(endpoint(local), endpoint(remote)) for local, remote in connections}

    def look() -> list[Diagnosed]:
        return _connections(wanted, _ALL_STATES)

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


def _connections(wanted: Container[tuple[Endpoint, Endpoint]], states: int = _STATES) -> list[Diagnosed]:
    """Those of this network namespace in these states, by default those from which more could come. Raises OSError."""
    return [one for one in diagnosed(states) if (one.socket.local, one.socket.remote) in wanted]


def _destroy(connections: Iterable[Diagnosed]) -> None:
    for one in connections:
        try:
            destroy(one, _STATES)
        except OSError as error:
            if error.errno not in _ENDED:
                raise
