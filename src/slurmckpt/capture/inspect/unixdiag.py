"""The unix sockets of a network namespace with their peers, from the kernel's socket diagnosis (sock_diag(7)).

/proc/net/unix does not tell who is connected with whom.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from typing import Literal

from slurmckpt.capture.inspect.sockdiag import dump, in_network_namespace

_UDIAG_SHOW_NAME = 0x1
_UDIAG_SHOW_PEER = 0x4
_UDIAG_SHOW_ICONS = 0x8
_UDIAG_SHOW_RQLEN = 0x10
_UNIX_DIAG_NAME = 0
_UNIX_DIAG_PEER = 2
_UNIX_DIAG_ICONS = 3
_UNIX_DIAG_RQLEN = 4
_ATTEMPTS = 3
# struct unix_diag_req of linux/unix_diag.h: every socket in any state, the cookie that asks for no certain one.
_REQUEST = struct.pack(
    "=BBHIIIII",
    socket.AF_UNIX,
    0,
    0,
    0xFFFFFFFF,
    0,
    _UDIAG_SHOW_NAME | _UDIAG_SHOW_PEER | _UDIAG_SHOW_ICONS | _UDIAG_SHOW_RQLEN,
    0xFFFFFFFF,
    0xFFFFFFFF,
)
_MESSAGE = struct.Struct("=BBBBIII")
_ATTRIBUTE = struct.Struct("=HH")
_QUEUES = struct.Struct("=II")
# include/net/tcp_states.h
_LISTEN = 10


@dataclass(frozen=True)
class UnixSocket:
    """One socket.

    peer: inode of the socket at the other end, 0 when it waits to be accepted, None when there is none.

    type: socket.SOCK_STREAM and so on. name: an abstract name begins with `@`, as ss shows it, and no other one does.
    waiting: of a listening socket, the inodes of those that connected to it and wait to be accepted. backlog: of a
    listening socket, that of listen(2); else None.
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


def _dump() -> dict[int, UnixSocket]:
    found: dict[int, UnixSocket] = {}
    for _ in range(_ATTEMPTS):
        bodies, again = dump(_REQUEST)
        found = {one.inode: one for body in bodies if (one := parse_socket(body)) is not None}
        if not again:
            break
    return found


def parse_socket(body: bytes) -> UnixSocket | None:
    """One answer of the kernel's; None for one that is too short."""
    if len(body) < _MESSAGE.size:
        return None
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
        offset += (length + 3) & ~3
    return UnixSocket(inode=inode, type=kind, name=name, peer=peer, waiting=waiting, backlog=backlog)


def _name(raw: bytes) -> str:
    if raw.startswith(b"\0"):
        return "@" + os.fsdecode(raw[1:])
    path = os.fsdecode(raw.rstrip(b"\0"))
    return f"./{path}" if path.startswith("@") else path


def _byte_order() -> Literal["little", "big"]:
    return "little" if struct.pack("=H", 1) == b"\1\0" else "big"
