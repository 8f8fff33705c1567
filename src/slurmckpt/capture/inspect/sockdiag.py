"""The kernel's socket diagnosis (sock_diag(7)): questions by netlink, in the network namespace of any process."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import TypeVar

from slurmckpt.capture import procfs

_T = TypeVar("_T")

# linux/netlink.h, linux/sock_diag.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_SOCK_DESTROY = 21
_NLM_F_REQUEST = 0x1
_NLM_F_ACK = 0x4
_NLM_F_DUMP_INTR = 0x10
_NLM_F_DUMP = 0x300
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_HEADER = struct.Struct("=IHHII")
_CODE = struct.Struct("=i")
_CLONE_NEWNET = 0x40000000
_PACKET_BYTES = 1 << 18
_TIMEOUT = 5.0


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


def dump(request: bytes) -> tuple[list[bytes], bool]:
    """The sockets of this network namespace that a request (struct unix_diag_req, inet_diag_req_v2) asks for.

    One message's body each, and whether the table changed so much meanwhile that it should be asked for again. Raises
    OSError: FileNotFoundError where the kernel has no diagnosis for the family.
    """
    return _exchange(_SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST | _NLM_F_DUMP, request)


def destroy(request: bytes) -> None:
    """Let the kernel end a connection (struct inet_diag_req_v2). Raises OSError.

    Its errno is EOPNOTSUPP where the kernel cannot (CONFIG_INET_DIAG_DESTROY), ENOENT when the connection has ended.
    """
    _exchange(_SOCK_DESTROY, _NLM_F_REQUEST | _NLM_F_ACK, request)


def parse_messages(data: bytes) -> tuple[list[bytes], bool, bool]:
    """One netlink packet: the bodies of its messages, whether the answer ends with it, whether it was interrupted.

    Raises OSError when the kernel reports an error.
    """
    bodies: list[bytes] = []
    interrupted = False
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, flags, _, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            break
        interrupted = interrupted or bool(flags & _NLM_F_DUMP_INTR)
        body = data[offset + _HEADER.size : offset + length]
        if kind in (_NLMSG_DONE, _NLMSG_ERROR):
            # Both carry a number, negative when it went wrong: a family without a module comes at the end of a dump.
            code = -_CODE.unpack_from(body)[0] if len(body) >= _CODE.size else 0
            if code > 0:
                raise OSError(code, os.strerror(code), "sock_diag")
            return bodies, True, interrupted
        bodies.append(body)
        offset += (length + 3) & ~3
    return bodies, False, interrupted


def _exchange(kind: int, flags: int, request: bytes) -> tuple[list[bytes], bool]:
    found: list[bytes] = []
    again = False
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(_TIMEOUT)
        netlink.connect((0, 0))
        netlink.send(_HEADER.pack(_HEADER.size + len(request), kind, flags, 1, 0) + request)
        while True:
            bodies, last, interrupted = parse_messages(netlink.recv(_PACKET_BYTES))
            found += bodies
            again = again or interrupted
            if last:
                return found, again
