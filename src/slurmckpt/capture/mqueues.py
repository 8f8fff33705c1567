"""POSIX message queues in the IPC namespace of a pod, which CRIU does not carry."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from slurmckpt.capture.ipcspace import PodGone, check, inside, libc

# The same on every architecture (the unified table that all system calls from 424 on share).
_SYS_FSOPEN, _SYS_FSCONFIG, _SYS_FSMOUNT = 430, 431, 432
# uapi/linux/mount.h
_FSOPEN_CLOEXEC, _FSCONFIG_CMD_CREATE, _FSMOUNT_CLOEXEC = 1, 6, 1


def names(init_pid: int) -> list[str]:
    """Their names, with the slash; none where the kernel knows no queues, or the pod is gone. Raises IpcError."""

    def read() -> list[str]:
        with suppress(OSError), _mounted() as directory:
            return sorted(f"/{name}" for name in os.listdir(directory))
        return []

    try:
        return inside(init_pid, read)
    except PodGone:
        return []


def clear(init_pid: int) -> None:
    """Remove all of them: they are not of the checkpoint that is restored in their place. Raises IpcError."""

    def remove() -> None:
        with suppress(OSError), _mounted() as directory:
            for name in os.listdir(directory):
                os.unlink(name, dir_fd=directory)

    inside(init_pid, remove)


@contextmanager
def _mounted() -> Iterator[int]:
    """A descriptor of the directory of the queues in the namespace of this thread; it is mounted nowhere."""
    c = libc()
    context = check(c.syscall(_SYS_FSOPEN, b"mqueue", _FSOPEN_CLOEXEC), "fsopen")
    try:
        check(c.syscall(_SYS_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0), "fsconfig")
        mount = check(c.syscall(_SYS_FSMOUNT, context, _FSMOUNT_CLOEXEC, ctypes.c_uint(0)), "fsmount")
    finally:
        os.close(context)
    try:
        directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount)
    finally:
        os.close(mount)
    try:
        yield directory
    finally:
        os.close(directory)
