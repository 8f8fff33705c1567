"""Calls in the IPC namespace of a pod, from a thread that has it for itself (setns(2)) and ends afterwards."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from slurmckpt.capture import procfs
from slurmckpt.errors import SlurmckptError

T = TypeVar("T")

_CLONE_NEWIPC = 0x08000000  # uapi/linux/sched.h


class IpcError(SlurmckptError):
    """What is in the IPC namespace of a pod cannot be looked at, or put right."""


class PodGone(IpcError):
    """There is no such namespace any more."""


def inside(init_pid: int, function: Callable[[], T]) -> T:
    """The result of `function`, called in the IPC namespace of the pod. init_pid: on this node.

    Raises PodGone, or what `function` raises, an OSError as IpcError.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            try:
                space = os.open(f"{procfs.PROC}/{init_pid}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                if procfs.is_gone(error):
                    raise PodGone("the pod is gone") from error
                raise
            try:
                check(libc().setns(space, _CLONE_NEWIPC), "setns")
            finally:
                os.close(space)
            results.append(function())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name=f"ipc-of-{init_pid}", daemon=True)
    thread.start()
    thread.join()
    if failures:
        if isinstance(failures[0], OSError):
            reason = failures[0].strerror
            raise IpcError(f"the IPC namespace of the pod cannot be handled: {reason}") from failures[0]
        raise failures[0]
    return results[0]


def libc() -> ctypes.CDLL:
    """The C library; check() knows the errors of its calls."""
    return ctypes.CDLL(None, use_errno=True)


def check(result: int, call: str) -> int:
    """The result of a call of the C library. Raises OSError when it failed."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result
