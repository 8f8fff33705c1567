"""Internet sockets, from the tables in /proc/PID/net of the pod's network namespace (proc_pid_net(5))."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurmckpt.capture import procfs

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# include/net/tcp_states.h
ESTABLISHED = 1
CLOSED = 7
LISTEN = 10

UDP_TABLES = ("udp", "udp6", "udplite", "udplite6")
_TABLE_BYTES = 64 << 20


@dataclass(frozen=True)
class Endpoint:
    """An IPv4-mapped IPv6 address is kept as the IPv4 address that it means."""

    address: Address
    port: int

    @classmethod
    def of(cls, name: Sequence[Any]) -> Endpoint:
        """What getsockname(2) or getpeername(2) gives for an internet socket, maybe with an interface behind a %."""
        return cls(plain(ipaddress.ip_address(str(name[0]).partition("%")[0])), int(name[1]))

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if self.address.version == 6 else f"{self.address}:{self.port}"


@dataclass(frozen=True)
class InetSocket:
    """One line of a table. inode: 0 when no process holds the socket (it waits to be accepted, or is being closed).

    waiting: how many connections wait to be accepted, of one that listens. has_unread: whether something waits to be
    read, of one for datagrams.
    """

    local: Endpoint
    remote: Endpoint
    state: int
    inode: int
    waiting: int = 0
    has_unread: bool = field(default=False, compare=False)

    @property
    def connected(self) -> bool:
        return self.state not in (LISTEN, CLOSED)


class _Everything:
    def __contains__(self, inode: object) -> bool:
        return True


EVERY: Container[int] = _Everything()


def read_tables(pid: int, tables: Iterable[str], inodes: Container[int]) -> list[InetSocket]:
    """read_table() of several. Raises OSError."""
    return [one for table in tables for one in read_table(pid, table, inodes)]


def read_table(pid: int, table: str, inodes: Container[int]) -> list[InetSocket]:
    """The sockets of `inodes` in a table of the network namespace of `pid`, in the kernel's order.

    Where `inodes` holds 0, those that no process holds are among them. Raises OSError.
    """
    return list(parse_table(procfs.read(f"{procfs.PROC}/{pid}/net/{table}", _TABLE_BYTES) or b"", inodes))


def parse_table(text: bytes, inodes: Container[int]) -> Iterator[InetSocket]:
    """The lines of /proc/net/tcp, tcp6, udp or udp6 whose inode is one of `inodes`; others are passed over."""
    for line in text.split(b"\n")[1:]:
        words = line.split(None, 10)
        # sl, local, remote, state, queues, timer, retransmits, uid, timeout, inode, ...
        if len(words) < 10 or not words[9].isdigit():
            continue
        inode = int(words[9])
        if inode not in inodes:
            continue
        try:
            state = int(words[3], 16)
            queued = int(words[4].partition(b":")[2], 16)
            waiting = queued if state == LISTEN else 0
            ends = parse_endpoint(words[1]), parse_endpoint(words[2])
            yield InetSocket(*ends, state, inode, waiting, bool(queued) and state != LISTEN)
        except ValueError:
            continue


def parse_endpoint(text: bytes) -> Endpoint:
    """`0100007F:1F90` -> 127.0.0.1:8080. The address is written as 32-bit words in the byte order of the machine."""
    address, _, port = text.partition(b":")
    words = bytes.fromhex(address.decode("ascii", errors="replace"))
    if len(words) not in (4, 16):
        raise ValueError(f"an address of {len(words)} bytes")
    if sys.byteorder == "little":
        words = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
    return Endpoint(plain(ipaddress.ip_address(words)), int(port, 16))


def plain(address: Address) -> Address:
    """The IPv4 address that an IPv4-mapped IPv6 address stands for; any other address as it is."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def node_addresses(sockets: Iterable[InetSocket]) -> list[str]:
    """The local addresses that these sockets need to find on the node of a restore, sorted: IPv4 first."""
    needed = {s.local.address for s in sockets}
    kept = [a for a in needed if not (a.is_loopback or a.is_unspecified or a.is_multicast or int(a) == 0xFFFFFFFF)]
    return [str(a) for a in sorted(kept, key=lambda a: (a.version, int(a)))]


def ends_outside(mine: Iterable[InetSocket], unheld: Iterable[InetSocket]) -> list[InetSocket]:
    """The connections among `mine` whose other end is not among `mine`.

    unheld: sockets of the same namespace that no process holds. A connection that waits to be accepted by a listening
    socket of the pod ends inside; one whose other end was closed by its process has nobody at the other end any more.
    """
    pod = list(mine)
    ends = {(s.local, s.remote) for s in pod if s.connected}
    listening = {s.local for s in pod if s.state == LISTEN}
    orphans = {(s.local, s.remote): s for s in unheld if s.connected}
    found: list[InetSocket] = []
    for one in pod:
        reverse = (one.remote, one.local)
        if not one.connected or reverse in ends:
            continue
        orphan = orphans.get(reverse)
        if orphan is not None and (orphan.state != ESTABLISHED or _accepts(listening, orphan.local)):
            continue
        if orphan is None and one.state != ESTABLISHED and one.remote.address.is_loopback:
            continue
        found.append(one)
    return found


def _accepts(listening: Container[Endpoint], local: Endpoint) -> bool:
    wildcards = (ipaddress.IPv4Address(0), ipaddress.IPv6Address(0))
    return local in listening or any(Endpoint(address, local.port) in listening for address in wildcards)
