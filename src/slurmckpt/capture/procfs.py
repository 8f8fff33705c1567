"""Bounded reads of /proc that take it as normal that a process or a descriptor disappears while it is looked at."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator

PROC = "/proc"

# pidfd_getfd(2) has this number on every architecture (the unified table that all system calls from 424 on share).
_SYS_PIDFD_GETFD = 438
_GONE = frozenset({errno.ENOENT, errno.ESRCH})
_libc = ctypes.CDLL(None, use_errno=True)


def is_gone(error: OSError) -> bool:
    """Whether the error only says that the process or the descriptor is no longer there."""
    return error.errno in _GONE


def read(path: str, limit: int = 1 << 20) -> bytes | None:
    """The first `limit` bytes of a file of /proc, or None when it has gone. Other errors are raised as OSError."""
    chunks: list[bytes] = []
    left = limit
    with _gone_is_none(), _opened(path) as descriptor:
        while left > 0 and (chunk := os.read(descriptor, min(left, 1 << 16))):
            chunks.append(chunk)
            left -= len(chunk)
        return b"".join(chunks)
    return None


def read_record(path: str, limit: int = 1 << 16) -> bytes | None:
    """As read(), with a single read(2): for files that the kernel makes as one record, as status and fdinfo."""
    with _gone_is_none(), _opened(path) as descriptor:
        return os.read(descriptor, limit)
    return None


@contextlib.contextmanager
def _gone_is_none() -> Iterator[None]:
    """Goes on behind what it covers when the process or the descriptor is no longer there."""
    try:
        yield
    except OSError as error:
        if not is_gone(error):
            raise


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def link(path: str) -> str | None:
    """The target of a link of /proc, or None when it has gone.

    A target longer than a page, which the kernel cannot show, is returned as the empty string.
    """
    try:
        return os.readlink(path)
    except OSError as error:
        if is_gone(error):
            return None
        if error.errno == errno.ENAMETOOLONG:
            return ""
        raise


def names(path: str) -> list[str]:
    """The names in a directory of /proc; empty when it has gone."""
    try:
        return os.listdir(path)
    except OSError as error:
        if is_gone(error):
            return []
        raise


def fields(text: bytes) -> dict[str, str]:
    """`Name:<blank>value` lines, as in /proc/PID/status and fdinfo. The first line of a name counts."""
    found: dict[str, str] = {}
    for line in text.decode(errors="replace").split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name, value.strip())
    return found


def borrow_descriptor(pidfd: int, descriptor: int) -> int:
    """A duplicate of another process's descriptor, close-on-exec. Raises OSError (pidfd_getfd(2), Linux 5.6 and newer).

    The duplicate keeps the pipe or connection open, so it must be closed soon.
    """
    duplicate = int(_libc.syscall(_SYS_PIDFD_GETFD, pidfd, descriptor, 0))
    if duplicate < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"pidfd_getfd {descriptor}")
    return duplicate
