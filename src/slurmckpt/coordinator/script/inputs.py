"""Standard input on its way from the script to a step.

srun reads ahead: what its step has not read yet lies in srun, in slurmstepd, and in the pipe to each task. When the pod
stands still, all of it is made to flow into the tasks' pipes, whose content is copied. At a restore it is given back to
where srun had read it from, before the new srun starts: the file's offset goes back, or the pipe gets it again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Sequence

# /proc/sys/fs/pipe-max-size, for a caller without CAP_SYS_RESOURCE (pipe(7))
ROOM = 1 << 20
_F_SETPIPE_SZ = 1031
_F_GETPIPE_SZ = 1032
_SPLICE_F_NONBLOCK = 2
_MOST = (1 << 31) - 1

_libc = ctypes.CDLL(None, use_errno=True)


def make_room(descriptors: Iterable[int]) -> None:
    """Let these pipes hold as much as a pipe may."""
    for descriptor in descriptors:
        if fcntl.fcntl(descriptor, _F_GETPIPE_SZ) < ROOM:
            # Not allowed more: then it may be too small, which the drain finds.
            with contextlib.suppress(OSError):
                fcntl.fcntl(descriptor, _F_SETPIPE_SZ, ROOM)


def content(pipe: int) -> bytes:
    """What is in a pipe, which keeps it (tee(2)). Raises OSError."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.fcntl(writing, _F_SETPIPE_SZ, max(fcntl.fcntl(pipe, _F_GETPIPE_SZ), 4096))
        # As much as there is: its user may have made it larger than we would.
        size = _libc.tee(pipe, writing, ctypes.c_size_t(_MOST), ctypes.c_uint(_SPLICE_F_NONBLOCK))
        if size < 0:
            number = ctypes.get_errno()
            if number == errno.EAGAIN:
                return b""
            raise OSError(number, os.strerror(number))
        data = b""
        while len(data) < size:
            data += os.read(reading, size - len(data))
        return data
    finally:
        os.close(reading)
        os.close(writing)


def common_content(pipes: Sequence[int]) -> bytes | None:
    """What is in each of these pipes, or None when it is not the same in all. Raises OSError."""
    found = {content(pipe) for pipe in pipes}
    return found.pop() if len(found) == 1 else (None if found else b"")


def give_back(descriptor: int, data: bytes) -> None:
    """Let whoever reads from `descriptor`, a file or pipe at which nobody reads now, find `data` there first.

    Raises OSError.
    """
    if not data:
        return
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.lseek(descriptor, -len(data), os.SEEK_CUR)
        return
    make_room([descriptor])
    writing = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(writing, view) :]
    finally:
        os.close(writing)
