"""Two processes for one agent, so that coordinator and agent may die together and the ranks still get their GPUs back.

The keeper forks before CUDA is initialised. Its child is the agent; it writes down in shared memory which ranks it
holds. When the agent has died, and then, or before, the coordinator as well, the keeper forks again to release them.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable

_MOST = 16384
# Seconds before each release: a lock that was under way may still succeed, with nobody there to hear of it.
_PAUSES = (0, 5, 30)
_COUNT = struct.Struct("=I")


class Held:
    """A list of pids in memory that is shared over fork(). Who reads it finds one that was written completely."""

    def __init__(self) -> None:
        self._half = _COUNT.size + 4 * _MOST
        # A byte says which half counts.
        self._memory = mmap.mmap(-1, 1 + 2 * self._half)

    def write(self, pids: Iterable[int]) -> None:
        """Replace the list."""
        chosen = sorted(pids)[:_MOST]
        other = 1 - self._memory[0]
        start = 1 + other * self._half
        data = _COUNT.pack(len(chosen)) + struct.pack(f"={len(chosen)}i", *chosen)
        self._memory[start : start + len(data)] = data
        self._memory[0] = other

    def read(self) -> list[int]:
        """The list as it was last written."""
        start = 1 + self._memory[0] * self._half
        (count,) = _COUNT.unpack_from(self._memory, start)
        return list(struct.unpack_from(f"={min(count, _MOST)}i", self._memory, start + _COUNT.size))


def keep(
    coordinator: int, channel: socket.socket, serve: Callable[[Held], None], release: Callable[[list[int]], None]
) -> None:
    """Run serve() in a child. When that dies otherwise than by returning, release() what it held, in another child,
    once the process `coordinator` has ended: while it lives it sees to that itself, and kills this process.
    """
    held = Held()
    child = _fork(lambda: serve(held))
    # Only the child's: the coordinator must see its end.
    channel.close()
    if _returned(child) or not held.read():
        return
    try:
        pidfd = os.pidfd_open(coordinator)
    except ProcessLookupError:
        pidfd = -1
    if pidfd >= 0:
        select.select([pidfd], [], [])
    for pause in _PAUSES:
        time.sleep(pause)
        _returned(_fork(lambda: release(held.read())))


def _fork(work: Callable[[], None]) -> int:
    """Do it in a child, and end that: threads that hang in the driver must not keep it."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def _returned(child: int) -> bool:
    _, status = os.waitpid(child, 0)
    return status == 0
