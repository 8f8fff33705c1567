"""TCP connections that CRIU makes take no resets, by a filter of restart.so's (pod/resets.c), until all of them exist.

One whose other end is gone still owes an acknowledgement, which the kernel answers with a reset. So it is made to send
it now, and the answer has been dropped before the filter goes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import time
from pathlib import Path

from slurmckpt.capture import heldsockets
from slurmckpt.capture.inspect.sockets import Endpoint
from slurmckpt.capture.processes import pod_processes

# struct sock_filter of pod/resets.c (linux/filter.h: code, jumps, value), and how it is asked for and taken away.
_FILTER = b"".join(
    struct.pack("=HBBI", *one) for one in [(0x30, 0, 0, 13), (0x45, 0, 1, 4), (6, 0, 0, 0), (6, 0, 0, 0x736C6D63)]
)
_INSTRUCTIONS = len(_FILTER) // 8
_SO_GET_FILTER, _SO_DETACH_FILTER = 26, 27
# Nine numbers; the last says how many packets have been dropped (SK_MEMINFO_DROPS in linux/sock_diag.h).
_SO_MEMINFO, _MEMINFO = 55, struct.Struct("=9I")
# include/net/tcp_states.h: CLOSE_WAIT, LAST_ACK. What owes an acknowledgement may be in these.
_OWING = frozenset({8, 9})
# The kernel answers itself within the call; no more than this for all, where it has put that off.
_SECONDS = 0.2
_POLL_SECONDS = 0.002
_libc = ctypes.CDLL(None, use_errno=True)


def let_through(init_pid: int, images: Path) -> None:
    """Let the pod's connections take resets again. To be called when all sockets exist, and none may send yet.

    init_pid: on this node. Raises SlurmckptError when the pod is gone, OSError when one keeps its filter.
    """
    if next(images.glob("tcp-stream-*.img"), None) is None:
        return
    processes = pod_processes(init_pid)
    ends: dict[str, tuple[Endpoint | None, Endpoint | None]] = {}
    filtered: list[str] = []
    for key, one in heldsockets.all_of(processes):
        if _is_tcp(one):
            ends[key] = _ends(one)
            if _is_filtered(one):
                filtered.append(key)
    inside = set(ends.values())
    deadline = time.monotonic() + _SECONDS
    for key, one in heldsockets.named(processes, filtered):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        if _state(one) in _OWING and ends[key][::-1] not in inside:
            while not _dropped(one) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        one.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def _is_tcp(one: socket.socket) -> bool:
    return one.family in (socket.AF_INET, socket.AF_INET6) and one.proto == socket.IPPROTO_TCP


def _is_filtered(one: socket.socket) -> bool:
    # By the C library: the length is a number of instructions, which Python would take for one of bytes.
    buffer = ctypes.create_string_buffer(len(_FILTER))
    length = ctypes.c_uint32(_INSTRUCTIONS)
    if _libc.getsockopt(one.fileno(), socket.SOL_SOCKET, _SO_GET_FILTER, buffer, ctypes.byref(length)):
        code = ctypes.get_errno()
        if code in (errno.EINVAL, errno.EACCES):
            return False  # a longer one, or one of another kind
        raise OSError(code, os.strerror(code), "SO_GET_FILTER")
    return length.value == _INSTRUCTIONS and buffer.raw == _FILTER


def _state(one: socket.socket) -> int:
    return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def _dropped(one: socket.socket) -> int:
    """How many packets."""
    found: int = _MEMINFO.unpack(one.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))[-1]
    return found


def _ends(one: socket.socket) -> tuple[Endpoint | None, Endpoint | None]:
    """Local and remote address and port, each as that of the same family whatever the socket's is."""
    found: list[Endpoint | None] = []
    for name in (one.getsockname, one.getpeername):
        try:
            found.append(Endpoint.of(name()))
        except OSError:
            found.append(None)
    return found[0], found[1]
