"""UDP datagrams that have arrived at a socket and were not read yet, which CRIU drops.

They are peeked at while nothing moves, and sent again at a restore, over loopback and with the source that they had.
When they came, and where exactly, is not kept. A network may lose datagrams, so whatever cannot be sent again is lost
with a word in the log.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import logging
import socket
import struct
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from slurmckpt.capture import heldsockets, notes
from slurmckpt.capture.inspect.sockdiag import in_network_namespace
from slurmckpt.capture.inspect.sockets import Address, Endpoint, plain
from slurmckpt.capture.processes import Process, pod_processes

log = logging.getLogger(__name__)

FILE = "datagrams.json"
# uapi/asm-generic/socket.h, linux/udp.h
_SO_PEEK_OFF, _SO_RCVBUFFORCE, _UDP_GRO = 42, 33, 104
_MAX_BYTES = 65536
# Room for all that there was room for, however the kernel keeps them this time.
_ROOM = 64 << 20
# RFC 791, 8200, 768: without options; RFC 8200, 8.1: what else the checksum of UDP covers.
_IP4, _IP6, _UDP = struct.Struct("!BBHHHBBH4s4s"), struct.Struct("!IHBB16s16s"), struct.Struct("!HHHH")
_PSEUDO4, _PSEUDO6 = struct.Struct("!4s4sxBH"), struct.Struct("!16s16sI3xB")
_HOPS = 64

# A datagram: in base64, and address and port of its source.
Noted = tuple[str, str, int]


def save(processes: Iterable[Process], keys: Iterable[str], images: Path) -> None:
    """Note beside the images what waits at these sockets. keys: `PID/FD` inside the pod. Raises OSError."""
    found = {key: waiting for key, one in heldsockets.named(processes, keys) if (waiting := list(_waiting(one)))}
    if found:
        notes.save(images / FILE, found)


def apply(init_pid: int, images: Path) -> None:
    """Send the sockets of a pod what waited at those of these images. init_pid: on this node.

    Raises OSError when the note cannot be read, SlurmckptError when the pod is gone.
    """
    note: dict[str, list[Noted]] | None = notes.load(images / FILE)
    if note is None:
        return
    for key, one in heldsockets.named(pod_processes(init_pid), note):
        packets = [packet for text, host, port in note[key] if (packet := _packet(one, text, host, port))]
        room = one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        one.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM)
        sent = in_network_namespace(init_pid, partial(_send, packets))
        # The kernel gives twice as much as is asked for (socket(7)).
        one.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, room // 2)
        if lost := len(note[key]) - sent:
            log.warning("%d of %d datagrams that waited at the socket %s are lost", lost, len(note[key]), key)


def _waiting(one: socket.socket) -> Iterator[Noted]:
    if one.proto != socket.IPPROTO_UDP or one.getsockopt(socket.IPPROTO_UDP, _UDP_GRO):
        return  # of those that the kernel has put together (UDP_GRO) nobody can say where one begins
    place = one.getsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF)
    one.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                data, source = one.recvfrom(_MAX_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
                yield base64.b64encode(data).decode("ascii"), source[0], source[1]
    finally:
        one.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, place)


def _packet(one: socket.socket, text: str, host: str, port: int) -> tuple[bytes, str] | None:
    """The whole IP packet, and where to; None for one that only its own interface can bring (a link-local source)."""
    if "%" in host:
        return None
    data = base64.b64decode(text)
    source = plain(ipaddress.ip_address(host))
    name = Endpoint.of(one.getsockname())
    target = name.address
    if target.is_unspecified:
        target = ipaddress.ip_address("127.0.0.1" if source.version == 4 else "::1")
    if target.version != source.version or target.is_multicast:
        return None
    length = _UDP.size + len(data)
    whole = _UDP.pack(port, name.port, length, _checksum(source, target, port, name.port, data)) + data
    if source.version == 4:
        header = _IP4.pack(
            0x45, 0, _IP4.size + length, 0, 0, _HOPS, socket.IPPROTO_UDP, 0, source.packed, target.packed
        )
    else:
        header = _IP6.pack(6 << 28, length, socket.IPPROTO_UDP, _HOPS, source.packed, target.packed)
    return header + whole, str(target)


def _checksum(source: Address, target: Address, port: int, to: int, data: bytes) -> int:
    length = _UDP.size + len(data)
    if source.version == 4:
        covered = _PSEUDO4.pack(source.packed, target.packed, socket.IPPROTO_UDP, length)
    else:
        covered = _PSEUDO6.pack(source.packed, target.packed, length, socket.IPPROTO_UDP)
    covered += _UDP.pack(port, to, length, 0) + data + b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(covered) // 2}H", covered))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF or 0xFFFF


def _send(packets: Iterable[tuple[bytes, str]]) -> int:
    """How many could be. One of IPv6 that is longer than what loopback carries in one piece cannot."""
    sent = 0
    with contextlib.ExitStack() as stack:
        senders: dict[int, socket.socket] = {}
        for packet, target in packets:
            family = socket.AF_INET6 if ":" in target else socket.AF_INET
            if family not in senders:
                # The header is ours to write with this protocol (raw(7)).
                one = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)
                senders[family] = stack.enter_context(one)
            with contextlib.suppress(OSError):
                senders[family].sendto(packet, (target, 0))
                sent += 1
    return sent
