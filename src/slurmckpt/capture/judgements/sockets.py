"""Sockets of other kinds than TCP, UDP and unix sockets of the pod's own network namespace."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.inspect.network import OtherSocket
from slurmckpt.capture.judgements import CLOSE
from slurmckpt.capture.refusals import Reason

# can_dump_ipproto() in CRIU's sk-inet.c: IP, ICMP, TCP, UDP, UDPLITE, ICMPV6
_INET_PROTOCOLS = frozenset({0, 1, 6, 17, 58, 136})
_IPPROTO_MPTCP = 262


def judge(seen: Inspection) -> Iterator[Reason]:
    """Those that CRIU does not know, or of which it would lose something."""
    for one in seen.other_sockets:
        sentence = _sentence(one)
        if sentence is not None:
            yield Reason(one.holder.process, *sentence)
    for inode in seen.tcp_to_stepd:
        # Other connections to outside are reset at a restore; without this one an MPI program ends.
        yield Reason(
            seen.descriptors.sockets[inode].process,
            "is connected with slurmstepd (PMIx), which cannot be captured",
            "start the step with srun --mpi=none, and MPI programs with mpirun",
        )


def _sentence(one: OtherSocket) -> tuple[str, str] | None:
    """What is wrong with it, and the way out; None when nothing is."""
    if one.family in (socket.AF_INET, socket.AF_INET6):
        if one.type == socket.SOCK_RAW or one.protocol in _INET_PROTOCOLS:
            return None
        if one.protocol == _IPPROTO_MPTCP:
            return (
                "has a multipath TCP socket open, which cannot be captured",
                "for a Go program set GODEBUG=multipathtcp=0",
            )
        return f"has a socket of the IP protocol {one.protocol} open, which cannot be captured", CLOSE
    if one.family == socket.AF_UNIX:
        if one.peer is None:
            return None
        return "is connected by a unix socket that was made in another network namespace", CLOSE
    if one.family == socket.AF_NETLINK:
        if not isinstance(one.peer, tuple) or one.peer[0] == 0:
            return None
        return f"has a netlink socket that is connected to port {one.peer[0]}, which cannot be captured", CLOSE
    if one.family == socket.AF_PACKET:
        if not one.receives_packets:
            return None
        # CRIU drops what has not been read, and the other node's interfaces have other numbers.
        return "captures packets of the network, which cannot be captured", "stop the network capture first"
    return f"has a socket of the family {_family(one.family)} open, which cannot be captured", CLOSE


def _family(number: int) -> str:
    try:
        return socket.AddressFamily(number).name
    except ValueError:
        return str(number)
