"""A shim with relays, whose coordinator, pod init and task the test plays."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
import subprocess
import termios
import threading
from collections.abc import Callable
from typing import Any

from slurmckpt.capture.waits import Kind, observe
from tests.unit.awaiting import wait_until
from tests.unit.pod.harness import UID, FakeCoordinator, Shim
from tests.unit.pod.payloads import payload_header

F_SETPIPE_SZ, F_GETPIPE_SZ = 1031, 1032
OUT, ERR = 1, 2


def waiting_bytes(pipe: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])


class Pipe:
    """A pipe as slurmstepd makes it for a task's output. owner: of its inode; only the owner can open it again."""

    def __init__(self, owner: int = UID, capacity: int | None = None) -> None:
        self.reader, self.writer = os.pipe()
        os.fchown(self.writer, owner, -1)
        if capacity is not None:
            fcntl.fcntl(self.writer, F_SETPIPE_SZ, capacity)
        os.set_blocking(self.reader, False)
        self.inode = os.fstat(self.reader).st_ino
        self.seen = b""
        self.ended = False

    def read(self) -> bytes:
        """Everything that has come so far, read just now or before."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.reader, 1 << 20):
                self.seen += data
            self.ended = True
        return self.seen

    def read_to_end(self) -> bytes:
        os.set_blocking(self.reader, True)
        while data := os.read(self.reader, 1 << 20):
            self.seen += data
        return self.seen

    def at_end(self) -> bool:
        self.read()
        return self.ended

    def close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
        self.writer = -1

    def close_reader(self) -> None:
        if self.reader >= 0:
            os.close(self.reader)
        self.reader = -1

    def close(self) -> None:
        self.close_writer()
        self.close_reader()


class Stage:
    """A shim with pipes for output whose task is played by the test. task: descriptor number -> its writing end."""

    def __init__(self, coordinator: FakeCoordinator) -> None:
        self._coordinator = coordinator
        self._pipes: list[Pipe] = []
        self._threads: list[threading.Thread] = []
        self.task: dict[int, int] = {}

    def pipe(self, **options: Any) -> Pipe:
        pipe = Pipe(**options)
        self._pipes.append(pipe)
        return pipe

    def start(self, stdout: Any, stderr: Any = subprocess.DEVNULL, argv: tuple[str, ...] = ("/bin/true",)) -> Shim:
        """The shim has sent START. Pipes may be given; the test keeps no writing end of them."""
        given_ends = [end.writer if isinstance(end, Pipe) else end for end in (stdout, stderr)]
        shim = self._coordinator.started_shim(argv, stdout=given_ends[0], stderr=given_ends[1])
        for end in (stdout, stderr):
            if isinstance(end, Pipe):
                end.close_writer()
        return shim

    def run(self, shim: Shim) -> Shim:
        """RUN, with the task's ends taken by the test."""
        header = payload_header(shim.fds[0])
        numbers = [int(number) for number in header["fds"].split(",")]
        self.task = {number: os.dup(end) for number, end in zip(numbers, shim.fds[1:], strict=True)}
        shim.wire.send("RUN")
        shim.close_fds()
        return shim

    def started(self, stdout: Any, stderr: Any = subprocess.DEVNULL) -> Shim:
        return self.run(self.start(stdout, stderr))

    def write(self, data: bytes, number: int = OUT) -> None:
        while data:
            data = data[os.write(self.task[number], data) :]

    def write_meanwhile(self, data: bytes, number: int = OUT, pieces: Callable[[], int] = lambda: 1 << 16) -> None:
        """In a thread, in pieces of these sizes; the end is closed afterwards."""

        def work() -> None:
            at = 0
            with contextlib.suppress(BrokenPipeError):
                while at < len(data):
                    at += os.write(self.task[number], data[at : at + pieces()])
            self.close_end(number)

        thread = threading.Thread(target=work)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        """Waits until everything is written that is being written meanwhile."""
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def close_end(self, number: int) -> None:
        os.close(self.task.pop(number))

    def rest(self, shim: Shim) -> None:
        """Waits until the shim has dealt with everything that the task wrote and sleeps with nothing to pass on."""
        wait_until(lambda: at_rest(shim, list(self.task.values())), "the shim is at rest")

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        self.join()
        for number in list(self.task):
            self.close_end(number)


def at_rest(shim: Shim, ends: list[int]) -> bool:
    pipes = [end for end in ends if stat.S_ISFIFO(os.fstat(end).st_mode)]
    if any(waiting_bytes(end) for end in pipes):
        return False
    # what was in the pipes before is in the shim now: if it sleeps as it should, it is through with it
    wait = observe(shim.process.pid, shim.process.pid)
    return wait is not None and wait.kind is Kind.DESCRIPTORS and len(wait.reads) >= 3 and not wait.writes


def is_blocked(shim: Shim) -> bool:
    """It sleeps and waits for room in an original pipe."""
    wait = observe(shim.process.pid, shim.process.pid)
    return wait is not None and wait.kind is Kind.DESCRIPTORS and bool(wait.writes)


def fill(stage: Stage, shim: Shim, size: int) -> bytes:
    """Writes so much that the original pipe is full and the shim waits for its reader."""
    lines = b"".join(b"%09d\n" % i for i in range(size // 10))
    stage.write_meanwhile(lines)
    wait_until(lambda: is_blocked(shim), "the shim waits for room")
    return lines
