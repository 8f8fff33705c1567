"""Bounded reads of /proc that take it as normal that a process or a descriptor disappears while it is looked at."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

PROC = "/proc"
T = TypeVar("T")

# pidfd_getfd(2) has this number on every architecture (the unified table that all system calls from 424 on share).
_SYS_PIDFD_GETFD = 438
_READ = os.O_RDONLY | os.O_CLOEXEC
_GONE = frozenset({errno.ENOENT, errno.ESRCH})
_libc = ctypes.CDLL(None, use_errno=True)


def is_gone(error: OSError) -> bool:
    """Whether the error only says that the process or the descriptor is no longer there."""
    return error.errno in _GONE


def read(path: str, limit: int = 1 << 20) -> bytes | None:
    """The first `limit` bytes of a file of /proc, or None when it has gone. Other errors are raised as OSError."""
    chunks: list[bytes] = []
    left = limit
    try:
        descriptor = os.open(path, _READ)
        try:
            while left > 0 and (chunk := os.read(descriptor, min(left, 1 << 16))):
                chunks.append(chunk)
                left -= len(chunk)
        finally:
            os.close(descriptor)
    except OSError as error:
        if is_gone(error):
            return None
        raise
    return b"".join(chunks)


def read_record(path: str, limit: int = 1 << 16, directory: int | None = None) -> bytes | None:
    """As read(), with a single read(2): for files that the kernel makes as one record, as status and fdinfo.

    directory: the descriptor of the one that `path` is relative to.
    """
    try:
        descriptor = os.open(path, _READ, dir_fd=directory)
        try:
            return os.read(descriptor, limit)
        finally:
            os.close(descriptor)
    except OSError as error:
        if is_gone(error):
            return None
        raise


@contextlib.contextmanager
def opened(path: str) -> Iterator[int | None]:
    """A descriptor of a directory of /proc, None when it has gone: what is relative to it is found in half the time."""
    try:
        descriptor = os.open(path, _READ | os.O_DIRECTORY)
    except OSError as error:
        if not is_gone(error):
            raise
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def link(path: str, directory: int | None = None) -> str | None:
    """The target of a link of /proc, or None when it has gone.

    directory: the descriptor of the one that `path` is relative to. A target longer than a page, which the kernel
    cannot show, is returned as the empty string.
    """
    try:
        return _unless_gone(os.readlink, path, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return ""
        raise


def status(path: str, directory: int | None = None, follow: bool = True) -> os.stat_result | None:
    """Of what a link of /proc leads to, or of the link itself; None when it has gone.

    directory: as of link(). Blocks while the file system of what it leads to does not answer.
    """
    return _unless_gone(os.stat, path, dir_fd=directory, follow_symlinks=follow)


def _unless_gone(look: Callable[..., T], path: str, **options: object) -> T | None:
    """What a look at a link gives, or None when it has gone. Raises OSError.

    The links of a process that ends just then are forbidden (proc_pid_get_link() in Linux fs/proc/base.c). Whoever
    looks once more finds that they are gone, or else that they are forbidden.
    """
    try:
        try:
            return look(path, **options)
        except PermissionError:
            return look(path, **options)
    except OSError as error:
        if is_gone(error):
            return None
        raise


def names(path: str | int) -> list[str]:
    """The names in a directory of /proc, by its path or a descriptor of it; empty when it has gone."""
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
