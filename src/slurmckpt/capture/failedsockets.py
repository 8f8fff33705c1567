"""TCP sockets whose connection has failed, and whose program has not been told yet: the next call would say ECONNRESET.

CRIU brings them back without the error: an interrupted transfer would look like a complete one. So at a restore they
are connected to nobody, and reset. Which error it was the kernel tells only once, to the program: it becomes
ECONNRESET.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import select
import socket
import struct
import termios
from collections.abc import Sequence
from pathlib import Path

from slurmckpt.capture import heldsockets, notes
from slurmckpt.capture.processes import pod_processes

FILE = "failed-sockets.json"
# Linux's own values (linux/tcp.h).
_TCP_REPAIR, _TCP_REPAIR_QUEUE, _RECEIVE = 19, 20, 1
# Discard (RFC 863). Whoever serves it at an address of the pod's does not know the connection, and resets it as well.
_NOBODY = 9
# The kernel answers itself, and mostly within the call.
_MILLISECONDS = 5000
# In repair mode the kernel takes no more at once than it can allocate in one piece.
_PIECE = 16384
_libc = ctypes.CDLL(None, use_errno=True)


def has_failed(one: socket.socket) -> bool:
    """Whether an error waits for its program, of an internet socket that is in none of the kernel's tables."""
    if one.proto != socket.IPPROTO_TCP or one.type != socket.SOCK_STREAM:
        return False
    return bool(_events(one, 0) & select.POLLERR)


def save(keys: Sequence[str], images: Path) -> None:
    """Note beside the images which sockets have failed. keys: `PID/FD` inside the pod. Raises OSError."""
    if keys:
        notes.save(images / FILE, keys)


def apply(init_pid: int, images: Path) -> None:
    """Let the sockets of a pod fail that had in these images. init_pid: on this node.

    Raises OSError when one does not, SlurmckptError when the pod is gone.
    """
    note: list[str] | None = notes.load(images / FILE)
    if note is None:
        return
    for _, one in heldsockets.named(pod_processes(init_pid), note):
        _fail(one)


def _fail(one: socket.socket) -> None:
    if one.getsockopt(socket.IPPROTO_TCP, _TCP_REPAIR):
        # It is under CRIU's repair, which sets its SO_REUSEADDR in the end.
        one.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 0)
    # What it had received can still be read before the error; the new connection begins without.
    received = one.recv(count, socket.MSG_PEEK | socket.MSG_DONTWAIT) if (count := _unread(one)) else b""
    address = _own_address(one)
    # The end of the repair takes it away.
    reuse = one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
    _disconnect(one)
    one.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
    one.connect((address, _NOBODY))
    one.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR_QUEUE, _RECEIVE)
    for start in range(0, len(received), _PIECE):
        one.sendall(received[start : start + _PIECE])
    # It asks the other side for its window, and is told that there is no connection.
    one.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 0)
    if not _events(one, _MILLISECONDS) & select.POLLERR:
        raise TimeoutError("a TCP connection that had failed could not be made to fail again")
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)


def _unread(one: socket.socket) -> int:
    """How many bytes."""
    found = array.array("i", [0])
    fcntl.ioctl(one, termios.FIONREAD, found)
    return found[0]


def _own_address(one: socket.socket) -> str:
    host: str = one.getsockname()[0]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _disconnect(one: socket.socket) -> None:
    unspecified = struct.pack("=H14x", socket.AF_UNSPEC)
    if _libc.connect(one.fileno(), unspecified, len(unspecified)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "connect to AF_UNSPEC")


def _events(one: socket.socket, milliseconds: int) -> int:
    poll = select.poll()
    poll.register(one, 0)
    found = poll.poll(milliseconds)
    return found[0][1] if found else 0
