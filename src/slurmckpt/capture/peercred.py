"""Who listens at a unix socket, as those find out who connect to it (SO_PEERCRED, unix(7)).

The kernel notes it at listen(2), and CRIU calls that as root: whoever connected to a restored socket would take the
job for root. Our plugin of CRIU's has it called with the ids of the job's user (pod/peers.c). Where that did not work,
those that listen do it once more here; the pid is then that of nobody whom they can see (0).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import platform
import socket
import struct
import threading

from slurmckpt.capture import heldsockets, procfs
from slurmckpt.capture.inspect.unixdiag import unix_sockets
from slurmckpt.capture.processes import pod_processes

log = logging.getLogger(__name__)

# (setresuid, setresgid) of the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl, uapi/asm-generic/unistd.h).
# The C library's would change all threads of the process.
_SYSCALLS = {"x86_64": (117, 119), "aarch64": (147, 149)}
_UNCHANGED = ctypes.c_long(-1)
_CREDENTIALS = struct.Struct("=iII")  # struct ucred


def listen_again(init_pid: int, uid: int, gid: int) -> None:
    """Have every unix socket that listens in the pod do it as this user. init_pid: on this node. Raises OSError.

    For the time before its processes run: nobody has connected yet. What cannot be changed is logged.
    """
    wanted = {f"socket:[{inode}]": one.backlog for inode, one in unix_sockets(init_pid).items()}
    wanted = {link: backlog for link, backlog in wanted.items() if backlog is not None}
    if not wanted:
        return
    with contextlib.ExitStack() as stack:
        found: list[tuple[socket.socket, int]] = []
        for process in pod_processes(init_pid):
            directory = f"{procfs.PROC}/{process.pid}/fd"
            for number in procfs.names(directory):
                backlog = wanted.pop(procfs.link(f"{directory}/{number}") or "", None)
                if backlog is None:
                    continue
                one = stack.enter_context(heldsockets.borrowed(process.pid, int(number)))
                if _ids(one) != (uid, gid):
                    found.append((one, backlog))
        if not found:
            return
        thread = threading.Thread(target=_listen_all, args=(found, uid, gid), name="listen")
        thread.start()
        thread.join()


def _ids(one: socket.socket) -> tuple[int, int]:
    """Of whoever has called listen(2); that is what the socket has for its own peer."""
    _, uid, gid = _CREDENTIALS.unpack(one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return uid, gid


def _listen_all(sockets: list[tuple[socket.socket, int]], uid: int, gid: int) -> None:
    """The thread ends afterwards, so its ids need not be put back."""
    try:
        _become(uid, gid)
        for one, backlog in sockets:
            one.listen(backlog)
    except OSError as error:
        log.warning("unix sockets listen as root: %s", error)


def _become(uid: int, gid: int) -> None:
    """The effective ids of this thread alone. The real ones stay: the user may not send it a signal. Raises OSError."""
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is None:
        raise OSError(f"machine {platform.machine()} is not supported; accepted: {', '.join(_SYSCALLS)}")
    libc = ctypes.CDLL(None, use_errno=True)
    # The group first: without root's id it could not be changed.
    for number, wanted in zip(reversed(numbers), (gid, uid), strict=True):
        if libc.syscall(ctypes.c_long(number), _UNCHANGED, ctypes.c_long(wanted), _UNCHANGED) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
