"""The unix sockets of a network namespace with their peers, from the kernel's socket diagnosis (sock_diag(7)).

/proc/net/unix does not tell who is connected with whom.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from slurmckpt.capture import procfs

_T = TypeVar("_T")

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_NLM_F_REQUEST = 0x1
_NLM_F_DUMP_INTR = 0x10
_NLM_F_DUMP = 0x300
_UDIAG_SHOW_NAME = 0x1
_UDIAG_SHOW_PEER = 0x4
_UDIAG_SHOW_ICONS = 0x8
_UDIAG_SHOW_RQLEN = 0x10
_UNIX_DIAG_NAME = 0
_UNIX_DIAG_PEER = 2
_UNIX_DIAG_ICONS = 3
_UNIX_DIAG_RQLEN = 4
_CLONE_NEWNET = 0x40000000
_ATTEMPTS = 3
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBHIIIII")
_MESSAGE = struct.Struct("=BBBBIII")
_ATTRIBUTE = struct.Struct("=HH")
_QUEUES = struct.Struct("=II")
# include/net/tcp_states.h
_LISTEN = 10


@dataclass(frozen=True)
class UnixSocket:
    """One socket.

    peer: inode of the socket at the other end, 0 when it waits to be accepted, None when there is none.

    type: socket.SOCK_STREAM and so on. name: an abstract name begins with `@`, as ss shows it. waiting: of a
    listening socket, the inodes of those that connected to it and wait to be accepted. backlog: of a listening socket,
    that of listen(2); else None.
    """

    inode: int
    type: int
    name: str
    peer: int | None
    waiting: tuple[int, ...]
    backlog: int | None = None


def unix_sockets(pid: int) -> dict[int, UnixSocket]:
    """All unix sockets of the network namespace of process `pid`, by inode. Raises OSError."""
    return in_network_namespace(pid, _dump)


def in_network_namespace(pid: int, action: Callable[[], _T]) -> _T:
    """The result of `action()` called in the network namespace of `pid`, in a thread of its own unless that is ours."""
    path = f"{procfs.PROC}/{pid}/ns/net"
    if os.stat(path).st_ino == os.stat(f"{procfs.PROC}/thread-self/ns/net").st_ino:
        return action()
    results: list[_T] = []
    failures: list[Exception] = []

    def enter() -> None:
        # The thread ends afterwards, so nothing has to be put back.
        try:
            namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(namespace, _CLONE_NEWNET) != 0:
                    code = ctypes.get_errno()
                    raise OSError(code, os.strerror(code), path)
            finally:
                os.close(namespace)
            results.append(action())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=enter, name="netns")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def parse_messages(data: bytes, found: dict[int, UnixSocket]) -> tuple[bool, bool]:
    """Take the sockets of one netlink packet into `found`. Returns (whether it was the last one, whether to ask again).

    Raises OSError when the kernel reports an error.
    """
    interrupted = False
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, flags, _, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            break
        interrupted = interrupted or bool(flags & _NLM_F_DUMP_INTR)
        body = data[offset + _HEADER.size : offset + length]
        if kind == _NLMSG_DONE:
            return True, interrupted
        if kind == _NLMSG_ERROR:
            code = -int.from_bytes(body[:4], "little", signed=True) if len(body) >= 4 else 0
            raise OSError(code, os.strerror(code), "unix_diag")
        if kind == _SOCK_DIAG_BY_FAMILY and len(body) >= _MESSAGE.size:
            one = _socket(body)
            found[one.inode] = one
        offset += _aligned(length)
    return False, interrupted


def _dump() -> dict[int, UnixSocket]:
    found: dict[int, UnixSocket] = {}
    for _ in range(_ATTEMPTS):
        found = {}
        if not _dump_once(found):
            break
    return found


def _dump_once(found: dict[int, UnixSocket]) -> bool:
    """Returns whether the table changed so much during the look that it should be repeated."""
    request = _REQUEST.pack(
        socket.AF_UNIX,
        0,
        0,
        0xFFFFFFFF,
        0,
        _UDIAG_SHOW_NAME | _UDIAG_SHOW_PEER | _UDIAG_SHOW_ICONS | _UDIAG_SHOW_RQLEN,
        0xFFFFFFFF,
        0xFFFFFFFF,
    )
    header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0)
    again = False
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink:
        netlink.sendto(header + request, (0, 0))
        while True:
            last, interrupted = parse_messages(netlink.recv(1 << 18), found)
            again = again or interrupted
            if last:
                return again


def _socket(body: bytes) -> UnixSocket:
    _, kind, state, _, inode, _, _ = _MESSAGE.unpack_from(body)
    name, peer, waiting, backlog = "", None, (), None
    offset = _MESSAGE.size
    while offset + _ATTRIBUTE.size <= len(body):
        length, attribute = _ATTRIBUTE.unpack_from(body, offset)
        if length < _ATTRIBUTE.size or offset + length > len(body):
            break
        value = body[offset + _ATTRIBUTE.size : offset + length]
        if attribute == _UNIX_DIAG_NAME:
            name = _name(value)
        elif attribute == _UNIX_DIAG_PEER and len(value) == 4:
            peer = int.from_bytes(value, _byte_order())
        elif attribute == _UNIX_DIAG_ICONS and len(value) % 4 == 0:
            waiting = struct.unpack(f"={len(value) // 4}I", value)
        elif attribute == _UNIX_DIAG_RQLEN and len(value) == _QUEUES.size and state == _LISTEN:
            _, backlog = _QUEUES.unpack(value)
        offset += _aligned(length)
    return UnixSocket(inode=inode, type=kind, name=name, peer=peer, waiting=waiting, backlog=backlog)


def _name(raw: bytes) -> str:
    if raw.startswith(b"\0"):
        return "@" + os.fsdecode(raw[1:])
    return os.fsdecode(raw.rstrip(b"\0"))


def _byte_order() -> Literal["little", "big"]:
    return "little" if struct.pack("=H", 1) == b"\1\0" else "big"


def _aligned(length: int) -> int:
    return (length + 3) & ~3
