"""Multicast groups that sockets have joined, and the interfaces on which they send to groups (ip(7), ipv6(7)).

CRIU carries neither. The kernel lists the groups of a network, and answers whether a given socket has joined a given
one. At the restore each is joined on the interface of the same name; where that is not there, the kernel chooses.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmckpt.capture import heldsockets, notes, procfs
from slurmckpt.capture.processes import Process, pod_processes

log = logging.getLogger(__name__)

FILE = "multicast.json"
# uapi/linux/in.h, in6.h
_JOIN_GROUP, _FILTER = 42, 48
_IP_MULTICAST_IF, _IPV6_MULTICAST_IF = 32, 17
_LEVELS = {socket.AF_INET: socket.IPPROTO_IP, socket.AF_INET6: socket.IPPROTO_IPV6}
_EXCLUDE = 0
# struct group_req and the beginning of struct group_filter: interface, group; then mode, number of sources, sources
_GROUP, _MODE = struct.Struct("=I4x128s"), struct.Struct("=II")
_ADDRESS_BYTES, _MAX_SOURCES = 128, 64
# uapi/linux/sockios.h: SIOCGIFNAME, SIOCGIFCONF, SIOCGIFINDEX; struct ifreq with an address
_GET_NAME, _GET_ADDRESSES, _GET_INDEX = 0x8910, 0x8912, 0x8933
_REQUEST, _MAX_INTERFACES = struct.Struct("16s4x4s16x"), 256
_LOOPBACK = "lo"
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class _Group:
    """interface: by its number and its name. address: in network byte order."""

    family: int
    number: int
    interface: str
    address: bytes


def save(init_pid: int, processes: Iterable[Process], images: Path) -> None:
    """Note beside the images what the sockets of these processes have joined; nothing without any. Raises OSError."""
    groups = list(_groups(init_pid))
    note: dict[str, dict[str, Any]] = {}
    for key, one in heldsockets.all_of(processes):
        if one.family not in _LEVELS or one.type == socket.SOCK_STREAM:
            continue
        found: dict[str, Any] = {}
        joined = [entry for group in groups if group.family == one.family and (entry := _joined(one, group))]
        if joined:
            found["joined"] = joined
        with contextlib.suppress(OSError):
            if sends := _sends_on(one):
                found["sends"] = sends
        if found:
            note[key] = found
    if note:
        notes.save(images / FILE, note)


def apply(init_pid: int, images: Path) -> None:
    """Have the sockets of a pod join what those of these images had joined. init_pid: on this node.

    What the kernel refuses is logged. Raises OSError when the note cannot be read, SlurmckptError when the pod is gone.
    """
    note: dict[str, dict[str, Any]] | None = notes.load(images / FILE)
    if note is None:
        return
    for key, one in heldsockets.named(pod_processes(init_pid), note):
        for name, address, mode, sources in note[key].get("joined", []):
            number = _number(one, name)
            _attempt(key, f"join {address} on {name}", one, _JOIN_GROUP, _joining(one, number, address))
            if mode != _EXCLUDE or sources:
                value = _filter(one, number, address, mode, sources)
                _attempt(key, f"filter {address} on {name}", one, _FILTER, value)
        if sends := note[key].get("sends"):
            name, address = sends
            number = _number(one, name)
            if one.family == socket.AF_INET:
                value = struct.pack("=4s4si", bytes(4), socket.inet_aton(address), number)
                _attempt(key, f"send on {name}", one, _IP_MULTICAST_IF, value)
            elif number:
                _attempt(key, f"send on {name}", one, _IPV6_MULTICAST_IF, struct.pack("=i", number))


def _groups(init_pid: int) -> Iterator[_Group]:
    """Those of the pod's network, in which every interface has one at least: all hosts."""
    number, name = 0, ""
    for line in (procfs.read(f"{procfs.PROC}/{init_pid}/net/igmp") or b"").decode().splitlines()[1:]:
        words = line.split()
        if not line.startswith("\t"):
            number, name = int(words[0]), words[1]
        else:
            yield _Group(socket.AF_INET, number, name, struct.pack("=I", int(words[0], 16)))
    for line in (procfs.read(f"{procfs.PROC}/{init_pid}/net/igmp6") or b"").decode().splitlines():
        words = line.split()
        yield _Group(socket.AF_INET6, int(words[0]), words[1], bytes.fromhex(words[2]))


def _joined(one: socket.socket, group: _Group) -> list[Any] | None:
    """[interface, address, mode, sources] when this socket has joined it."""
    buffer = ctypes.create_string_buffer(_GROUP.size + _MODE.size + _ADDRESS_BYTES * _MAX_SOURCES)
    _GROUP.pack_into(buffer, 0, group.number, _socket_address(group.family, group.address))
    _MODE.pack_into(buffer, _GROUP.size, 0, _MAX_SOURCES)
    size = ctypes.c_uint(len(buffer))
    level = _LEVELS[socket.AddressFamily(group.family)]
    if _libc.getsockopt(one.fileno(), int(level), _FILTER, buffer, ctypes.byref(size)) < 0:
        return None
    mode, count = _MODE.unpack_from(buffer, _GROUP.size)
    begin = _GROUP.size + _MODE.size
    offset, length = (4, 4) if group.family == socket.AF_INET else (8, 16)
    places = (begin + index * _ADDRESS_BYTES + offset for index in range(min(count, _MAX_SOURCES)))
    sources = [socket.inet_ntop(group.family, buffer.raw[place : place + length]) for place in places]
    return [group.interface, socket.inet_ntop(group.family, group.address), mode, sources]


def _sends_on(one: socket.socket) -> list[str] | None:
    """Where it sends to groups, [interface, its address]; None where the kernel chooses. Raises OSError."""
    if one.family == socket.AF_INET6:
        number = one.getsockopt(socket.IPPROTO_IPV6, _IPV6_MULTICAST_IF)
        return [_name(one, number), ""] if number else None
    address = one.getsockopt(socket.IPPROTO_IP, _IP_MULTICAST_IF, 4)
    if not any(address):
        return None
    text = socket.inet_ntoa(address)
    interfaces = _interfaces(one)
    name = interfaces.get(text, "")
    if name == _LOOPBACK and not text.startswith("127."):
        # In a network of its own, a pod has its old addresses there.
        name = next((other for other in interfaces.values() if other != _LOOPBACK), name)
    return [name, text]


# Interfaces are asked for through the socket itself, as it belongs to the network of its pod (netdevice(7)).
def _interfaces(one: socket.socket) -> dict[str, str]:
    """Names of interfaces, by their IPv4 addresses."""
    buffer = ctypes.create_string_buffer(_REQUEST.size * _MAX_INTERFACES)
    answer = fcntl.ioctl(one, _GET_ADDRESSES, struct.pack("@iP", len(buffer), ctypes.addressof(buffer)))
    (size,) = struct.unpack_from("@i", answer)
    entries = _REQUEST.iter_unpack(buffer.raw[: size // _REQUEST.size * _REQUEST.size])
    return {socket.inet_ntoa(address): name.partition(b"\0")[0].decode() for name, address in entries}


def _name(one: socket.socket, number: int) -> str:
    answer = fcntl.ioctl(one, _GET_NAME, struct.pack("16si20x", b"", number))
    return bytes(answer)[:16].partition(b"\0")[0].decode()


def _number(one: socket.socket, name: str) -> int:
    """0 when there is no such interface, which leaves it to the kernel."""
    try:
        answer = fcntl.ioctl(one, _GET_INDEX, struct.pack("16s24x", name.encode()))
    except OSError:
        return 0
    return int(struct.unpack_from("16xi", bytes(answer))[0])


def _joining(one: socket.socket, number: int, address: str) -> bytes:
    return _GROUP.pack(number, _socket_address(one.family, socket.inet_pton(one.family, address)))


def _filter(one: socket.socket, number: int, address: str, mode: int, sources: list[str]) -> bytes:
    addresses = [_socket_address(one.family, socket.inet_pton(one.family, source)) for source in sources]
    return _joining(one, number, address) + _MODE.pack(mode, len(sources)) + b"".join(addresses)


def _socket_address(family: int, address: bytes) -> bytes:
    """struct sockaddr_storage without a port."""
    begin = struct.pack("=HH", family, 0) + (b"" if family == socket.AF_INET else bytes(4))
    return (begin + address).ljust(_ADDRESS_BYTES, b"\0")


def _attempt(key: str, what: str, one: socket.socket, number: int, value: bytes) -> None:
    try:
        one.setsockopt(_LEVELS[socket.AddressFamily(one.family)], number, value)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:  # joined already
            log.warning("the socket %s cannot %s: %s", key, what, error.strerror)
