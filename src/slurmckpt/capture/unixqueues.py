"""Messages that wait at unix datagram and seqpacket sockets: CRIU carries their bytes and descriptors, and no more.

From whom a message came is lost where many may send, so that it could not be answered after a restore. And CRIU takes a
message of no bytes for the end, and loses it with all that came after it (dump_sk_queue() in its sk-queue.c). Both are
a matter of a moment, as a rule.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Iterable, Sequence

from slurmckpt.capture import heldsockets
from slurmckpt.capture.processes import Process
from slurmckpt.capture.refusals import Reason, sentences

KINDS = (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
# uapi/asm-generic/socket.h
_SO_PEEK_OFF = 42
# Of each message. What is longer comes in pieces.
_MAX_BYTES = 1 << 18
_NO_BYTES = "a message of no bytes at its unix socket"
_NAMED = "a message at its unix socket whose sender has a name"
_REMEDY = "the next checkpoint will do when it has been read"


def lost(processes: Sequence[Process], keys: Iterable[str], seen: set[int]) -> str:
    """What of the messages that wait at these sockets would be lost, as one sentence; mostly nothing.

    keys: `PID/FD` inside the pod. seen: the same at each call: the kernel shows a message of no bytes once to whoever
    peeks like this, and CRIU would pass over it then, so sockets with one are remembered until nothing waits at them.

    The processes must stand still, and CRIU not be at the sockets: both peek at them by the place that the socket
    remembers. Raises OSError.
    """
    names = {process.ns_pid: process for process in processes}
    for key, one in heldsockets.named(processes, keys):
        inode = os.fstat(one.fileno()).st_ino
        what = _lost(one)
        if what == _NO_BYTES:
            seen.add(inode)
        elif inode in seen and _events(one, select.POLLIN):
            what = _NO_BYTES
        else:
            seen.discard(inode)
        if what:
            process = names[int(key.partition("/")[0])]
            return sentences([Reason(process, f"has not read {what}, which cannot be captured", _REMEDY)], 1)[0]
    return ""


def _lost(one: socket.socket) -> str:
    may_be_anybody = not _is_connected(one)
    place = one.getsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF)
    one.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
    try:
        # Nothing more waits, or nothing can: it listens, or is not connected.
        with contextlib.suppress(OSError):
            while True:
                data, _, _, source = one.recvmsg(_MAX_BYTES, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)
                if not data:
                    return "" if _is_over(one) else _NO_BYTES
                if source and may_be_anybody:
                    return _NAMED
    finally:
        one.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, place)
    return ""


def _is_connected(one: socket.socket) -> bool:
    """Then CRIU has the messages come from its other end."""
    try:
        one.getpeername()
    except OSError:
        return False
    return True


def _is_over(one: socket.socket) -> bool:
    """Whether no bytes mean the end: of a connection, whose other end was closed."""
    return one.type == socket.SOCK_SEQPACKET and bool(_events(one, select.POLLRDHUP))


def _events(one: socket.socket, wanted: int) -> int:
    poll = select.poll()
    poll.register(one, wanted)
    found = poll.poll(0)
    return found[0][1] & wanted if found else 0
