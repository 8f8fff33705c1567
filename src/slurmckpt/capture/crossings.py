"""TCP connections that lead from one pod of a cut into another: each end is in an image of its own.

Whether the images fit together is to be seen in them. All processes stand still from before the first image on, so
nothing new is written; but the kernel goes on delivering what was. A connection is whole when each end had received at
least what the other end believes to be delivered: what lies between is sent again. Otherwise something would be lost.

At a restore CRIU makes one pod after the other, and an end that stands alone must not be noticed: the kernel answers
whatever it sends (again) with a reset. CRIU relies on firewall rules there. Here such an end is deaf: its image gets a
socket filter that drops all that comes (socket(7), SO_ATTACH_FILTER; CRIU attaches it when all else is set), and no
keepalive, whose probes nobody would answer. When all ends exist, and before any is let out of TCP_REPAIR, `listen`
takes the filters away. What was dropped meanwhile TCP sends again.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmckpt.capture import criu_files_pb2 as images
from slurmckpt.capture import fileimages, heldsockets, notes, tcpimages
from slurmckpt.capture.inspect.sockets import CLOSED, LISTEN, Endpoint, plain
from slurmckpt.capture.processes import pod_processes
from slurmckpt.errors import Refused, SlurmckptError

FILE = "crossings.json"
# include/net/tcp_states.h: FIN_WAIT1, LAST_ACK, CLOSING: the end of stream is sent, and not acknowledged.
_END_UNACKNOWLEDGED = (4, 9, 11)
_SYN_SENT = 2
_SEQUENCES = 1 << 32
# struct sock_filter as CRIU writes it (encode_filter() in sockets.c): BPF_RET | BPF_K, and 0 bytes of the packet.
_DROP_ALL = 0x06 << 48
# uapi/asm-generic/socket.h
_SO_DETACH_FILTER = 27

Pair = tuple[str, str]


class Torn(SlurmckptError):
    """The images do not fit together, as something was on its way. Other images will."""


@dataclass(frozen=True)
class Dumped:
    """One pod of the cut. step: its name. network: what its network namespace is known by."""

    step: str
    images: Path
    network: int


@dataclass(frozen=True)
class _End:
    pod: Dumped
    socket: images.inet_sk_entry

    @property
    def pair(self) -> Pair:
        one = self.socket
        return _endpoint(one.family, one.src_addr, one.src_port), _endpoint(one.family, one.dst_addr, one.dst_port)

    @property
    def place(self) -> str:
        return "the batch script" if self.pod.step == "batch" else f"step {self.pod.step}"


def seal(pods: Sequence[Dumped]) -> None:
    """Look whether the TCP connections in the images of a cut are whole, and make those between its pods deaf.

    Raises Torn, Refused for one that cannot be made so, OSError, ImageError.
    """
    ends = [end for pod in pods for end in _ends(pod)]
    inside = {(end.pod.step, *end.pair): end for end in ends}
    by_network = {(end.pod.network, *end.pair): end for end in ends}
    crossing: dict[str, list[_End]] = {}
    for end in ends:
        local, remote = end.pair
        other = inside.get((end.pod.step, remote, local))
        if other is None and (other := by_network.get((end.pod.network, remote, local))) is not None:
            crossing.setdefault(end.pod.step, []).append(end)
        if other is not None:
            _check(end, other)
    for found in crossing.values():
        _deafen(found)


def pairs(directory: Path) -> dict[Pair, bool]:
    """Those of these images, (local, remote) as `address:port`; and whether each had keepalive. Raises OSError."""
    note = notes.load(directory / FILE) or []
    return {(one["local"], one["remote"]): one["keepalive"] for one in note}


def listen(init_pid: int, directory: Path) -> None:
    """Let the restored ends hear, as all ends exist. init_pid: of their pod, on this node.

    Raises Refused when one of them is not there, OSError, SlurmckptError when the pod is gone.
    """
    missing = pairs(directory)
    for _, one in heldsockets.all_of(pod_processes(init_pid)):
        keepalive = missing.pop(pair, None) if (pair := _connects(one)) else None
        if keepalive is not None:
            one.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            if keepalive:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for local, remote in missing:
        raise Refused(f"the TCP connection from {local} to {remote} did not come back")


def _ends(pod: Dumped) -> Iterator[_End]:
    """All ends of connections, but of those that are only being opened."""
    for entry in fileimages.entries(pod.images):
        one = entry.isk
        connected = one.dst_port and one.state not in (LISTEN, CLOSED, _SYN_SENT)
        if entry.HasField("isk") and one.type == socket.SOCK_STREAM and connected:
            yield _End(pod, one)


def _check(end: _End, other: _End) -> None:
    """Raises Torn unless `end` had received whatever `other` takes for delivered, and nothing that it has not sent."""
    there = tcpimages.read(other.pod.images, other.socket.ino)
    here = tcpimages.read(end.pod.images, end.socket.ino)
    queued = there.queued + (other.socket.state in _END_UNACKNOWLEDGED)
    if (there.written - here.received) % _SEQUENCES > queued:
        local, remote = end.pair
        raise Torn(
            f"data was on its way in the TCP connection from {remote} of {other.place} to {local} of {end.place} when"
            " the images were written: the next checkpoint will do"
        )


def _deafen(ends: Sequence[_End]) -> None:
    """All of one pod: change its image, and note beside it what must be put right."""
    for end in ends:
        if end.socket.opts.so_filter:
            local, remote = end.pair
            raise Refused(f"the TCP connection from {local} to {remote} has a socket filter, and leads to another step")
    directory, wanted = ends[0].pod.images, {end.socket.ino for end in ends}

    def change(entry: images.file_entry) -> bool:
        if not entry.HasField("isk") or entry.isk.ino not in wanted:
            return False
        entry.isk.opts.so_filter.append(_DROP_ALL)
        entry.isk.opts.ClearField("so_keepalive")
        return True

    fileimages.rewrite(directory, change)
    note = [
        {"local": local, "remote": remote, "keepalive": end.socket.opts.so_keepalive}
        for end in ends
        for local, remote in [end.pair]
    ]
    notes.save(directory / FILE, note)


def _endpoint(family: int, words: Sequence[int], port: int) -> str:
    data = b"".join(struct.pack("=I", word) for word in words)
    address = ipaddress.ip_address(data[:4] if family == socket.AF_INET else data[:16])
    return str(Endpoint(plain(address), port))


def _connects(one: socket.socket) -> Pair | None:
    """What a socket connects; None when it is no TCP connection."""
    if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
        return None
    try:
        return str(Endpoint.of(one.getsockname())), str(Endpoint.of(one.getpeername()))
    except OSError:
        return None
