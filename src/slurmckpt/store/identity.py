"""File access with the file-system identity of the job's user.

The user owns the job's part of the store and may put links and pipes there; on storage with root_squash root is nobody.
So everything in the store is done by one thread per job that has the user's file-system identity for its whole life:
fsuid, fsgid and groups of the user (setfsuid(2), setfsgid(2), setgroups(2)) and no capability at all (capset(2)). Its
real uid stays that of the caller, so the user can neither signal nor trace it.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from slurmckpt.errors import StoreError
from slurmckpt.units import format_seconds

P = ParamSpec("P")
T = TypeVar("T")

# (setgroups, capset) of the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl, uapi/asm-generic/unistd.h).
# glibc's setgroups() would change all threads of the process; the raw call changes the calling thread only.
_SYSCALLS = {"x86_64": (116, 126), "aarch64": (159, 91)}
_CAPABILITY_VERSION_3 = 0x20080522  # _LINUX_CAPABILITY_VERSION_3 in uapi/linux/capability.h: two 32-bit words per set
_MAX_GROUPS = 65536  # NGROUPS_MAX


class UserFiles:
    """Runs functions, one at a time and in order, in a thread with the file-system identity of one user.

    Every function that touches the store is called through run() or run_sync(). A function that has started runs to its
    end even when the awaiting task is cancelled; what is run next waits for it.

    A file server that does not answer holds the thread, and nothing can free it. So whoever waits is let go when the
    thread has not come on for `patience` seconds: one function has not ended, and not called beat() either.
    """

    def __init__(self, executor: ThreadPoolExecutor, patience: float = math.inf) -> None:
        """Use for_user() instead."""
        self._executor = executor
        self._patience = patience
        self._seen = 0.0
        self._pending: set[Future[Any]] = set()

    @classmethod
    def for_user(cls, uid: int, gid: int, groups: Sequence[int], patience: float = math.inf) -> UserFiles:
        """A thread with this identity. groups: supplementary groups. patience: seconds.

        As root the thread takes the identity on; any other caller can only be the user itself and gets a plain thread.
        Raises StoreError with one line when the identity cannot be taken on completely.
        """
        euid = os.geteuid()
        if euid != 0 and euid != uid:
            raise StoreError(
                f"the files of uid {uid} cannot be handled by uid {euid}: only root can act for other users"
            )
        files = cls(ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"files-of-{uid}"), patience)
        if euid == 0 and uid != 0:
            try:
                files.run_sync(_become, uid, gid, tuple(groups))
            except BaseException:
                files.close()
                raise
        return files

    async def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of fn(*args), run in the thread without holding up the event loop.

        Raises StoreError when the thread does not come on: then fn may still run, or run later.
        """
        began = time.monotonic()
        if self._pending and began - self._seen > self._patience:
            raise self._stuck()
        pending = self._executor.submit(self._do, partial(fn, *args, **kwargs))
        self._pending.add(pending)
        pending.add_done_callback(self._pending.discard)
        future = asyncio.wrap_future(pending)
        try:
            while True:
                idle = time.monotonic() - max(self._seen, began)
                if idle > self._patience:
                    raise self._stuck()
                left = None if math.isinf(self._patience) else self._patience - idle + 0.001
                if (await asyncio.wait({future}, timeout=left))[0]:
                    return future.result()
        finally:
            # What has not started yet never will.
            future.cancel()

    async def run_to_end(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As run(), but when cancelled it returns only when fn has ended: for descriptors that the caller closes then.

        Their numbers must not be used for something else while fn still means the old ones.
        """
        running = asyncio.ensure_future(self.run(fn, *args, **kwargs))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    def run_sync(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of fn(*args), run in the thread; the caller waits."""
        return self._executor.submit(fn, *args, **kwargs).result()

    def _do(self, fn: Callable[[], T]) -> T:
        _thread.files = self
        self._seen = time.monotonic()
        try:
            return fn()
        finally:
            self._seen = time.monotonic()

    def _stuck(self) -> StoreError:
        return StoreError(f"the store has not answered for {format_seconds(self._patience)} (store.patience)")

    def close(self, wait: bool = True) -> None:
        """End the thread once what runs has ended; wait: until then. One that does not come on is left to its fate."""
        stuck = self._pending and time.monotonic() - self._seen > self._patience
        self._executor.shutdown(wait=wait and not stuck)

    def __enter__(self) -> UserFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_thread = threading.local()


def beat() -> None:
    """Called by a function in such a thread that takes long: it has come on since it last did."""
    files: UserFiles | None = getattr(_thread, "files", None)
    if files is not None:
        files._seen = time.monotonic()


def _become(uid: int, gid: int, groups: tuple[int, ...]) -> None:
    """Take the identity on in the calling thread, and have the kernel confirm it."""
    machine = platform.machine()
    if machine not in _SYSCALLS:
        raise StoreError(
            f"cannot act for uid {uid}: machine {machine} is not supported; accepted: {', '.join(_SYSCALLS)}"
        )
    if len(groups) > _MAX_GROUPS:
        raise StoreError(f"cannot act for uid {uid}: {len(groups)} groups; accepted: at most {_MAX_GROUPS}")
    setgroups, capset = _SYSCALLS[machine]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    array = (ctypes.c_uint32 * len(groups))(*groups)
    # The groups first: the calls after it take the rights away that it needs.
    if libc.syscall(ctypes.c_long(setgroups), ctypes.c_long(len(groups)), array) != 0:
        raise StoreError(f"cannot act for uid {uid}: setgroups: {os.strerror(ctypes.get_errno())}")
    libc.setfsgid(ctypes.c_uint32(gid))
    libc.setfsuid(ctypes.c_uint32(uid))
    # setfsuid drops the file-system capabilities; CAP_SYS_RESOURCE would still write past the user's quota.
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if libc.syscall(ctypes.c_long(capset), header, nothing) != 0:
        raise StoreError(f"cannot act for uid {uid}: capset: {os.strerror(ctypes.get_errno())}")
    _confirm(uid, gid, groups)


def _confirm(uid: int, gid: int, groups: tuple[int, ...]) -> None:
    """Refuse unless the kernel shows the identity: setfsuid and setfsgid report no error of their own."""
    # As bytes: a codec would be imported on first use, by a thread that may not be able to read the installation.
    lines = Path("/proc/thread-self/status").read_bytes().splitlines()
    status = {name.decode(): value.decode().split() for name, _, value in (line.partition(b":") for line in lines)}
    # The fourth number of Uid and Gid is the file-system one (proc_pid_status(5)).
    stands = (
        int(status["Uid"][3]) == uid
        and int(status["Gid"][3]) == gid
        and {int(group) for group in status["Groups"]} == set(groups)
        and int(status["CapEff"][0], 16) == 0
        and int(status["CapPrm"][0], 16) == 0
    )
    if not stands:
        shown = ", ".join(f"{name} {' '.join(status[name])}" for name in ("Uid", "Gid", "Groups", "CapEff", "CapPrm"))
        raise StoreError(f"cannot act for uid {uid}, gid {gid}: the kernel kept other rights ({shown})")
