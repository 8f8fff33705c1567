"""TCP sockets, from the kernel's socket diagnosis (sock_diag(7)).

/proc/net/tcp shows the same, but takes ten times as long where nearly all of the node's hash table is empty.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import partial

from slurmckpt.capture.inspect import sockdiag
from slurmckpt.capture.inspect.sockets import EVERY, LISTEN, Endpoint, InetSocket, plain, read_table

# include/net/tcp_states.h: ESTABLISHED to LISTEN, CLOSING, NEW_SYN_RECV
ALL_STATES = 0x1FFE
# Those that no process holds any more, or yet: SYN_RECV, TIME_WAIT.
_UNHELD_STATES = 1 << 3 | 1 << 6 | 1 << 12
# linux/inet_diag.h. struct inet_diag_req_v2: family, protocol, extensions, padding, states; then inet_diag_sockid.
_REQUEST = struct.Struct("=BBBxI")
# struct inet_diag_msg: family, state, timer, retransmits; struct inet_diag_sockid; expires, queues, uid, inode.
_MESSAGE = struct.Struct("=BBxx48s4xIIII")
# struct inet_diag_sockid: ports, addresses (network byte order), interface, cookie.
_IDENTITY = struct.Struct("!HH16s16s12x")
_FAMILIES = {socket.AF_INET: "tcp", socket.AF_INET6: "tcp6"}


@dataclass(frozen=True)
class Diagnosed:
    """A socket and how the kernel knows it again. identity: struct inet_diag_sockid, with the cookie."""

    family: int
    identity: bytes
    socket: InetSocket


def tcp_sockets(pid: int, inodes: Container[int] = EVERY) -> list[InetSocket]:
    """The TCP sockets of `inodes` in the network namespace of `pid`, in the kernel's order.

    Where `inodes` holds 0, those that no process holds are among them. Raises OSError.
    """
    states = ALL_STATES if 0 in inodes else ALL_STATES & ~_UNHELD_STATES
    found: list[InetSocket] = []
    for family, table in _FAMILIES.items():
        try:
            bodies = sockdiag.in_network_namespace(pid, partial(_answers, family, states))
        except FileNotFoundError:
            # A kernel without this family, or without its diagnosis (CONFIG_INET_DIAG).
            found += read_table(pid, table, inodes)
        else:
            found += [one.socket for one in _parsed(bodies, inodes)]
    return found


def diagnosed(states: int) -> list[Diagnosed]:
    """All TCP sockets of this network namespace in these states (bit n for state n). Raises OSError."""
    found: list[Diagnosed] = []
    for family in _FAMILIES:
        try:
            found += _parsed(_answers(family, states), EVERY)
        except FileNotFoundError:
            continue
    return found


def destroy(one: Diagnosed, states: int) -> None:
    """Let the kernel end a connection, if it is in one of these states. Raises OSError as sockdiag.destroy() does."""
    # With the cookie: without it, the kernel would take a listening socket where the connection is gone.
    sockdiag.destroy(_REQUEST.pack(one.family, socket.IPPROTO_TCP, 0, states) + one.identity)


def _answers(family: int, states: int) -> list[bytes]:
    bodies, _ = sockdiag.dump(_REQUEST.pack(family, socket.IPPROTO_TCP, 0, states) + bytes(_IDENTITY.size))
    return bodies


def _parsed(bodies: list[bytes], inodes: Container[int]) -> Iterator[Diagnosed]:
    for body in bodies:
        if len(body) < _MESSAGE.size:
            continue
        family, state, identity, waiting, _, _, inode = _MESSAGE.unpack_from(body)
        if inode not in inodes:
            continue
        local_port, remote_port, local, remote = _IDENTITY.unpack(identity)
        size = 4 if family == socket.AF_INET else 16
        yield Diagnosed(
            family,
            identity,
            InetSocket(
                Endpoint(plain(ipaddress.ip_address(local[:size])), local_port),
                Endpoint(plain(ipaddress.ip_address(remote[:size])), remote_port),
                state,
                inode,
                waiting if state == LISTEN else 0,
            ),
        )
