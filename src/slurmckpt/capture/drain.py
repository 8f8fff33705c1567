"""After the ranks are frozen: wait until what they had written has reached its files.

Output that does not go straight to a file travels through pipes into *carriers*, processes outside the pods that read
it and write it on: to another carrier over a connection, and in the end to a file. The size of that file is exact
only when nothing is under way.

When is nothing under way? The ranks are frozen, so no new output appears, and every byte is in one of three places:

1. in a pipe, or in a queue of a connection between two carriers. The kernel tells their lengths. TCP counts a byte as
   unsent until the receiver has acknowledged it, and by then it is in the receiver's queue; so if all send queues are
   read before all receive queues, and no carrier ran meanwhile, a byte on the wire cannot be missed.
2. in the memory of a carrier. That is judged by what its threads sleep for. An event loop that holds data asks
   poll(2) for a descriptor to become writable, and one with room for more asks for its inputs to become readable. So
   a carrier holds nothing when every input that has not ended is being waited for, no thread waits to write to an
   output, and no thread is busy. (Writing to a file counts as busy: poll(2) never waits for a file.)
3. on its way between the two, while a thread runs.

So one look observes the threads that wait for inputs twice, and in between it observes all other threads and then
reads the queues. If the queues are empty, nobody holds output, and the threads that wait for inputs did not run
between their two observations (same call, same descriptors, same number of context switches), then at that moment
nothing was under way, and nothing can start any more. If not, it looks again a little later. Threads that wait for
neither inputs nor outputs may wake up as they like: timers, signal handlers and the like do not move output.

What this cannot see: bytes that a carrier keeps although it could write them, such as the beginning of a line that it
passes on only when the line is complete; and a thread that took data from another one and now waits for a lock or the
time.

Only the way out counts. What travels towards the ranks (their standard input) is not output: see `inputs`, and on a
connection between a carrier that reads the ranks' pipes and one that does not, only the direction from the former to
the latter is looked at.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import fcntl
import os
import select
import stat
import termios
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass

from slurmckpt.capture import procfs
from slurmckpt.capture.carriers import (
    End,
    Table,
    connections,
    inode_of,
    is_alive,
    open_carrier,
    readable_pipes,
    table_of,
)
from slurmckpt.capture.waits import Kind, Wait, observe

FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.02
_OBSERVATIONS = 4

Pipe = int | str | os.PathLike[str]


@dataclass(frozen=True)
class DrainResult:
    """ok: nothing is under way any more. reason: one line when not: what was still under way at the end."""

    ok: bool
    reason: str = ""


async def drain(
    pipes: Sequence[Pipe], carriers: Sequence[int], deadline: float, inputs: Sequence[Pipe] = ()
) -> DrainResult:
    """Wait until all output has reached its files, `deadline` seconds from now at most; usually a few milliseconds.

    pipes: the pipes that the ranks write to, as descriptors of ours (they stay open and stay the caller's) or as
    paths such as /proc/PID/fd/1. carriers: pids on this node. inputs: the pipes from which the ranks read; a carrier
    that waits to write to one of these does not hold output. Carriers and paths that are gone have nothing under way.
    Raises ValueError for what is not a pipe.
    """
    end = time.monotonic() + deadline
    pause = FIRST_PAUSE
    with contextlib.ExitStack() as stack:
        opened = [fd for pipe in pipes if (fd := _open_pipe(pipe, stack)) is not None]
        fed = [fd for pipe in inputs if (fd := _open_pipe(pipe, stack)) is not None]
        watch = _Watch(opened, fed, carriers, stack)
        while True:
            try:
                reason = await asyncio.to_thread(watch.look)
            except OSError as error:
                return DrainResult(False, f"the output of the ranks could not be followed: {error}")
            if not reason:
                return DrainResult(True)
            left = end - time.monotonic()
            if left <= 0:
                return DrainResult(False, reason)
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)


@dataclass(frozen=True)
class _Way:
    """One direction of a connection."""

    sender: End
    receiver: End


@dataclass(frozen=True)
class _Route:
    """How output travels at one moment.

    inputs, outputs: (pid, descriptor) pairs of the carriers. waited: input -> its descriptors among `inputs`.
    """

    ways: list[_Way]
    inputs: set[tuple[int, int]]
    outputs: set[tuple[int, int]]
    waited: dict[str, list[tuple[int, int]]]


class _Watch:
    def __init__(
        self, pipes: Sequence[int], fed: Sequence[int], carriers: Sequence[int], stack: contextlib.ExitStack
    ) -> None:
        self._pipes = {_pipe_inode(fd): fd for fd in pipes}
        self._fed = {_pipe_inode(fd) for fd in fed}
        self._carriers = [c for pid in dict.fromkeys(carriers) if (c := open_carrier(pid, stack)) is not None]
        self._names = {carrier.pid: carrier.name for carrier in self._carriers}

    def look(self) -> str:
        """What is under way, in one line; empty when nothing is."""
        reason = self._full_pipe()
        if reason or not self._carriers:
            return reason
        with contextlib.ExitStack() as stack:
            route = self._route([table_of(c) for c in self._carriers if is_alive(c)], stack)
            return self._quiet(route)

    def _quiet(self, route: _Route) -> str:
        threads = self._observe({})
        reason = ""
        for _ in range(_OBSERVATIONS):
            movers = {key: wait for key, wait in threads.items() if self._moves(key[0], wait, route)}
            # After the movers, because a thread that was handed output by one of them is awake or holds it by now.
            others = self._observe(movers)
            reason = self._judge({**movers, **others}, route) or self._full_pipe() or self._full_queue(route.ways)
            if reason:
                return reason
            after = {key: wait for key in movers if (wait := observe(*key)) is not None}
            if after == movers and not any(self._moves(key[0], wait, route) for key, wait in others.items()):
                return ""
            # One of them woke up, perhaps only because of a timer. It may wait for something else now.
            threads = {**others, **after}
            name = self._names[next(iter(movers), next(iter(threads), (self._carriers[0].pid, 0)))[0]]
            reason = f"{name}, which carries output, does not come to rest"
        return reason

    def _observe(self, without: Container[tuple[int, int]]) -> dict[tuple[int, int], Wait]:
        """What every thread of every carrier does, by (pid, tid)."""
        keys = ((c.pid, int(tid)) for c in self._carriers for tid in procfs.names(f"{procfs.PROC}/{c.pid}/task"))
        return {key: wait for key in keys if key not in without and (wait := observe(*key)) is not None}

    def _judge(self, threads: dict[tuple[int, int], Wait], route: _Route) -> str:
        waited: set[tuple[int, int]] = set()
        for (pid, _), wait in threads.items():
            if wait.kind is Kind.BUSY:
                doing = "is stopped" if wait.state in "Tt" else "is still busy"
                return f"{self._names[pid]}, which carries output, {doing}"
            waited.update((pid, fd) for fd in wait.reads)
            for fd in wait.writes:
                if (pid, fd) in route.outputs:
                    target = procfs.link(f"{procfs.PROC}/{pid}/fd/{fd}")
                    return f"{self._names[pid]} holds output that it cannot write to {target or f'descriptor {fd}'}"
        for target, ends in route.waited.items():
            if not waited.intersection(ends) and not all(self._ended(*end) for end in ends):
                return f"{self._names[ends[0][0]]} is not waiting for output from {target}"
        return ""

    def _moves(self, pid: int, wait: Wait, route: _Route) -> bool:
        return any((pid, fd) in route.inputs for fd in wait.reads)

    def _ended(self, pid: int, descriptor: int) -> bool:
        """Whether an input has come to its end, so that nobody needs to wait for it."""
        carrier = next(c for c in self._carriers if c.pid == pid)
        try:
            duplicate = procfs.borrow_descriptor(carrier.pidfd, descriptor)
        except OSError as error:
            if procfs.is_gone(error) or error.errno == errno.EBADF:
                return True
            raise
        try:
            poll = select.poll()
            poll.register(duplicate, select.POLLRDHUP)
            return bool(dict(poll.poll(0)).get(duplicate, 0) & (select.POLLHUP | select.POLLRDHUP | select.POLLERR))
        finally:
            os.close(duplicate)

    def _full_pipe(self) -> str:
        for fd in self._pipes.values():
            waiting = _count(fd, termios.FIONREAD)
            if waiting:
                return f"{waiting} bytes of output are still in a pipe ({os.readlink(f'/proc/self/fd/{fd}')})"
        return ""

    def _full_queue(self, ways: Sequence[_Way]) -> str:
        # All send queues before all receive queues: see the first point of the argument above.
        for way in ways:
            waiting = _count(way.sender.descriptor, termios.TIOCOUTQ)
            if waiting:
                return f"{waiting} bytes of output are still on their way from {self._whose(way.sender)}"
        for way in ways:
            waiting = _count(way.receiver.descriptor, termios.FIONREAD)
            if waiting:
                return f"{waiting} bytes of output still wait to be read by {self._whose(way.receiver)}"
        return ""

    def _whose(self, end: End) -> str:
        return self._names[min(end.owners)]

    def _route(self, tables: Sequence[Table], stack: contextlib.ExitStack) -> _Route:
        """Find the connections between carriers, the way output goes on them, and what is input and output."""
        sources = {table.carrier.pid for table in tables if self._pipes.keys() & readable_pipes(table).keys()}
        ways = [
            _Way(mine, other)
            for mine, other in connections(tables, stack)
            if mine.owners & sources or not other.owners & sources
        ]
        sending = {way.sender.inode for way in ways}
        receiving = {way.receiver.inode for way in ways}
        inputs: set[tuple[int, int]] = set()
        outputs: set[tuple[int, int]] = set()
        waited: dict[str, list[tuple[int, int]]] = {}
        for table in tables:
            pid = table.carrier.pid
            for inode, fd in readable_pipes(table).items():
                if inode in self._pipes:
                    inputs.add((pid, fd))
                    waited.setdefault(f"pipe:[{inode}]", []).append((pid, fd))
            for fd, target in table.targets.items():
                inode = inode_of(target)
                if target.startswith("socket:"):
                    if inode in receiving:
                        inputs.add((pid, fd))
                        waited.setdefault(target, []).append((pid, fd))
                    if inode in sending:
                        outputs.add((pid, fd))
                elif target.startswith("/") or (target.startswith("pipe:") and inode not in self._fed):
                    outputs.add((pid, fd))
        return _Route(ways, inputs, outputs, waited)


def _open_pipe(pipe: Pipe, stack: contextlib.ExitStack) -> int | None:
    """A descriptor of a pipe, closed with `stack` if it was opened here; None when its process has gone."""
    if isinstance(pipe, int):
        descriptor = pipe
    else:
        try:
            # Not blocking: with nobody writing, open(2) would wait for a writer.
            descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if procfs.is_gone(error):
                return None
            raise
        stack.callback(os.close, descriptor)
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        raise ValueError(f"{pipe} is not a pipe")
    return descriptor


def _pipe_inode(descriptor: int) -> int:
    return os.fstat(descriptor).st_ino


def _count(descriptor: int, request: int) -> int:
    """The length of a queue in bytes (ioctl FIONREAD or TIOCOUTQ, which are SIOCINQ and SIOCOUTQ of a socket)."""
    value = array.array("i", [0])
    fcntl.ioctl(descriptor, request, value)
    return value[0]
