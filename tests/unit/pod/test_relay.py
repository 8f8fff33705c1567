"""The shim's relay: whole lines go on, the beginning of a line is held where the coordinator can read it.

Most tests play coordinator, pod init and task themselves: they write into the end that the task would get, so that they
know when which byte came.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import mmap
import os
import pty
import random
import resource
import select
import signal
import stat
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slurmckpt.capture.drain import drain
from slurmckpt.capture.waits import Kind, observe
from tests.unit.pod.harness import (
    PATIENCE,
    POD,
    UID,
    FakeCoordinator,
    Shim,
    children,
    payload_header,
    process_exists,
    shell,
    wait_until,
)

pytestmark = pytest.mark.root

LIMIT = 1024
F_SETPIPE_SZ, F_GETPIPE_SZ = 1031, 1032
F_GET_SEALS = 1034
SEAL, SHRINK, GROW, WRITE = 1, 2, 4, 8
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


def split(stream: bytes) -> tuple[bytes, bytes]:
    """What of a task's output has to be passed on, and what has to be held."""
    lines = stream.rfind(b"\n") + 1
    held = (len(stream) - lines) % LIMIT
    return stream[: len(stream) - held], stream[len(stream) - held :]


@pytest.fixture
def stage(coordinator: FakeCoordinator) -> Iterator[Stage]:
    made = Stage(coordinator)
    yield made
    made.close()


@pytest.fixture(params=[UID, 0], ids=["own-pipe", "foreign-pipe"])
def owner(request: pytest.FixtureRequest) -> int:
    """slurmstepd's pipes are the user's; others cannot be opened a second time and are written to in another way."""
    return int(request.param)


def test_the_parts_alone() -> None:
    """pod/check.c, built with sanitizers: also the patience with a reader that takes nothing, and EPIPE."""
    result = subprocess.run([POD / "build/check"], capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stdout) == (0, "all good\n"), result.stderr


# ---- the hand-over ----


def test_start_names_and_carries_the_relays(stage: Stage) -> None:
    out, err = stage.pipe(capacity=1 << 18), stage.pipe()
    shim = stage.start(out, err)
    header = payload_header(shim.fds[0])
    assert (header["fds"], header["relays"]) == ("0,1,2", "1,2")
    assert [os.fstat(fd).st_ino for fd in shim.originals] == [out.inode, err.inode]
    ends = shim.fds[2:]
    for end in (*ends, *shim.originals):
        assert stat.S_ISFIFO(os.fstat(end).st_mode)
        assert fcntl.fcntl(end, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_NONBLOCK) == os.O_WRONLY
    assert len({os.fstat(end).st_ino for end in ends} | {out.inode, err.inode}) == 4
    assert [fcntl.fcntl(end, F_GETPIPE_SZ) for end in ends] == [1 << 18, 1 << 16]


def test_held_memory_is_of_fixed_size_and_empty(stage: Stage) -> None:
    shim = stage.start(stage.pipe(), stage.pipe())
    assert fcntl.fcntl(shim.held, F_GET_SEALS) & (SEAL | SHRINK | GROW | WRITE) == SEAL | SHRINK | GROW
    assert os.pread(shim.held, 5000, 0) == bytes(4096)
    for size in (0, 4095, 4097):
        with pytest.raises(PermissionError):
            os.ftruncate(shim.held, size)


def test_one_pipe_for_both_is_one_relay(stage: Stage) -> None:
    both = stage.pipe()
    shim = stage.start(both, both)
    assert payload_header(shim.fds[0])["relays"] == "1"
    assert [os.fstat(fd).st_ino for fd in shim.originals] == [both.inode]
    assert os.fstat(shim.fds[2]).st_ino == os.fstat(shim.fds[3]).st_ino != both.inode
    stage.run(shim)
    stage.write(b"a", OUT)
    stage.write(b"b", ERR)
    stage.rest(shim)
    assert (both.read(), shim.held_bytes(OUT), shim.held_bytes(ERR)) == (b"", b"ab", b"")
    stage.write(b"c\n", OUT)
    stage.rest(shim)
    assert (both.read(), shim.held_bytes(OUT)) == (b"abc\n", b"")
    stage.close_end(OUT)
    stage.write(b"still\n", ERR)
    stage.rest(shim)
    assert both.read() == b"abc\nstill\n"


def test_only_standard_error_is_a_pipe(stage: Stage, scratch: Path) -> None:
    err = stage.pipe()
    with (scratch / "log").open("wb", buffering=0) as log:
        shim = stage.start(log, err)
        assert payload_header(shim.fds[0])["relays"] == "2"
        assert os.fstat(shim.fds[2]).st_ino == os.fstat(log.fileno()).st_ino
        assert [os.fstat(fd).st_ino for fd in shim.originals] == [err.inode]
        stage.run(shim)
        stage.write(b"to the file", OUT)
        stage.write(b"line\nrest", ERR)
        stage.rest(shim)
    assert (scratch / "log").read_bytes() == b"to the file"
    assert (err.read(), shim.held_bytes(OUT), shim.held_bytes(ERR)) == (b"line\n", b"", b"rest")


def test_what_is_not_relayed(stage: Stage, scratch: Path) -> None:
    """Files, terminals, sockets, pipes open for both ways or in packet mode, and standard input, whatever it is."""
    primary, secondary = pty.openpty()
    fifo = scratch / "fifo"
    os.mkfifo(fifo)
    both_ways = os.open(fifo, os.O_RDWR)
    read_packets, packets = os.pipe2(os.O_DIRECT)
    null = os.open("/dev/null", os.O_WRONLY)
    try:
        for one, other in ((secondary, null), (both_ways, packets)):
            shim = stage.start(one, other)
            assert payload_header(shim.fds[0])["relays"] == ""
            assert [os.fstat(fd).st_ino for fd in shim.fds[2:]] == [os.fstat(fd).st_ino for fd in (one, other)]
            assert shim.originals == () and shim.held >= 0
    finally:
        for fd in (primary, secondary, both_ways, read_packets, packets, null):
            os.close(fd)


def test_standard_input_that_is_a_pipe_is_the_tasks_own(coordinator: FakeCoordinator) -> None:
    shim = coordinator.started_shim(["/bin/cat"], stdin=subprocess.PIPE)
    assert shim.process.stdin is not None
    assert os.fstat(shim.fds[1]).st_ino == os.fstat(shim.process.stdin.fileno()).st_ino
    coordinator.pod(shim).lead([shim])
    shim.process.stdin.write(b"in and out")
    shim.process.stdin.close()
    shim.process.stdin = None
    assert shim.finish() == (0, "in and out", "")


@pytest.mark.parametrize("say_direct", [True, False])
def test_a_direct_task_has_the_original_pipes(coordinator: FakeCoordinator, say_direct: bool) -> None:
    shim = coordinator.started_shim(shell("stat -L -c %i /proc/self/fd/1 /proc/self/fd/2; printf rest; exit 3"))
    assert shim.process.stdout is not None and shim.process.stderr is not None
    inodes = [os.fstat(stream.fileno()).st_ino for stream in (shim.process.stdout, shim.process.stderr)]
    shim.hold(OUT, b"not for this one")
    if say_direct:
        shim.wire.send("DIRECT")
    else:
        shim.wire.close()
    code, out, _ = shim.finish()
    assert (code, out) == (3, f"{inodes[0]}\n{inodes[1]}\nrest")


# ---- lines ----


def test_lines_pass_and_their_beginning_is_held(stage: Stage, owner: int) -> None:
    out = stage.pipe(owner=owner)
    shim = stage.started(out)
    for data, passed, held in (
        (b"one\ntwo\n", b"one\ntwo\n", b""),
        (b"thr", b"", b"thr"),
        (b"ee", b"", b"three"),
        (b"\n", b"three\n", b""),
        (b"four\nfi", b"four\n", b"fi"),
        (b"ve\n\n\0six", b"five\n\n", b"\0six"),
        (b"\r", b"", b"\0six\r"),
    ):
        before = out.read()
        stage.write(data)
        stage.rest(shim)
        assert (out.read()[len(before) :], shim.held_bytes(OUT)) == (passed, held)


@pytest.mark.parametrize("size", [1022, 1023, 1024, 1025, 2047, 2048, 2049, 10_000])
@pytest.mark.parametrize("first", [0, 1, 1000, 1023])
def test_a_long_line_goes_on_in_pieces(stage: Stage, size: int, first: int) -> None:
    out = stage.pipe()
    shim = stage.started(out)
    line = bytes(random.Random(size).choices(b"abc\r\0\xff", k=size))
    if first:
        stage.write(line[:first])
        stage.rest(shim)
        assert shim.held_bytes(OUT) == line[:first]
    stage.write(line[first:])
    stage.rest(shim)
    pieces = size // LIMIT * LIMIT
    assert (out.read(), shim.held_bytes(OUT)) == (line[:pieces], line[pieces:])
    stage.write(b"\nx")
    stage.rest(shim)
    assert (out.read(), shim.held_bytes(OUT)) == (line + b"\n", b"x")


writes = st.lists(
    st.tuples(
        st.sampled_from([OUT, ERR]),
        st.one_of(
            st.binary(min_size=1, max_size=50),
            st.builds(lambda n, end: b"x" * n + end, st.integers(1, 3000), st.sampled_from([b"", b"\n", b"\ny"])),
        ),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes)
@example([(OUT, b"x" * 1023), (OUT, b"y"), (ERR, b"z" * 1023), (ERR, b"\n")])
def test_any_writes(coordinator: FakeCoordinator, parts: list[tuple[int, bytes]]) -> None:
    """At every rest each stream is split between reader and memory as the rule says, and at the end all has come."""
    stage = Stage(coordinator)
    try:
        pipes = {OUT: stage.pipe(), ERR: stage.pipe()}
        shim = stage.started(pipes[OUT], pipes[ERR])
        streams = {OUT: b"", ERR: b""}
        for number, data in parts:
            streams[number] += data
            stage.write(data, number)
            stage.rest(shim)
            for one, stream in streams.items():
                assert (pipes[one].read(), shim.held_bytes(one)) == split(stream)
        shim.wire.send("EXIT", status=0)
        assert shim.process.wait(PATIENCE) == 0
        assert {number: pipe.read_to_end() for number, pipe in pipes.items()} == streams
    finally:
        stage.close()


@pytest.mark.parametrize("newlines", [0.0, 0.0005, 0.02])
def test_ten_megabytes_byte_for_byte(stage: Stage, owner: int, newlines: float) -> None:
    rng = random.Random(f"{owner} {newlines}")
    pipes = {OUT: stage.pipe(owner=owner), ERR: stage.pipe(owner=owner, capacity=4096)}
    shim = stage.started(pipes[OUT], pipes[ERR])
    data = {}
    for number in pipes:
        body = bytearray(rng.randbytes(5 << 20).replace(b"\n", b"."))
        for _ in range(int(len(body) * newlines)):
            body[rng.randrange(len(body))] = 10
        data[number] = bytes(body)
        sizes = random.Random(number)
        stage.write_meanwhile(data[number], number, lambda sizes=sizes: int(2 ** sizes.uniform(0, 17)))  # type: ignore[misc]
    readers = [threading.Thread(target=pipe.read_to_end) for pipe in pipes.values()]
    for reader in readers:
        reader.start()
    stage.join()
    # standard error stays open for SAY
    shim.wire.send("EXIT", status=0)
    for reader in readers:
        reader.join(60)
    assert shim.process.wait(PATIENCE) == 0
    assert all(pipes[number].seen == data[number] for number in pipes)


def test_output_of_a_program_in_a_pod(coordinator: FakeCoordinator) -> None:
    _, (shim,) = coordinator.run(shell("seq 200000; printf half; printf 'no newline' >&2"))
    assert shim.finish() == (0, "".join(f"{i}\n" for i in range(1, 200001)) + "half", "no newline")


def test_held_bytes_can_be_read_while_a_program_runs(coordinator: FakeCoordinator) -> None:
    _, (shim,) = coordinator.run(shell("printf 'whole\\nhalf of '; read x; echo a line"), stdin=subprocess.PIPE)
    wait_until(lambda: shim.held_bytes(OUT) == b"half of ", "the half line is held")
    assert shim.process.stdout is not None and shim.process.stdin is not None
    assert os.read(shim.process.stdout.fileno(), 100) == b"whole\n"
    shim.process.stdin.write(b"\n")
    shim.process.stdin.close()
    shim.process.stdin = None
    assert shim.finish() == (0, "half of a line\n", "")
    assert shim.held_bytes(OUT) == b""


def test_an_idle_shim_sleeps(stage: Stage) -> None:
    out = stage.pipe()
    shim = stage.started(out, stage.pipe())
    stage.write(b"half")
    stage.rest(shim)
    pid = shim.process.pid
    before = observe(pid, pid)
    # as long as the longest time that it ever waits for something of its own accord
    time.sleep(1.2)
    assert observe(pid, pid) == before and before is not None


# ---- what the coordinator puts there before RUN ----


def test_held_bytes_of_a_restored_task_come_first(stage: Stage) -> None:
    out, err = stage.pipe(), stage.pipe()
    shim = stage.start(out, err)
    shim.hold(OUT, b"epoch 3: lo")
    shim.hold(ERR, b"e" * 1023)
    stage.run(shim)
    stage.rest(shim)
    assert (out.read(), err.read(), shim.held_bytes(OUT)) == (b"", b"", b"epoch 3: lo")
    stage.write(b"ss 0.5\n")
    stage.write(b"f", ERR)
    stage.rest(shim)
    assert (out.read(), err.read()) == (b"epoch 3: loss 0.5\n", b"e" * 1023 + b"f")
    assert shim.held_bytes(OUT) == shim.held_bytes(ERR) == b""


def test_held_bytes_without_a_successor_come_at_the_end(stage: Stage) -> None:
    out = stage.pipe()
    shim = stage.start(out)
    shim.hold(OUT, b"last words")
    stage.run(shim)
    shim.wire.send("EXIT", status=0)
    assert shim.process.wait(PATIENCE) == 0
    assert out.read_to_end() == b"last words"


@pytest.mark.parametrize("size", [1024, 1025, 2044, 2045, 4096, 2**31, 2**32 - 1])
@pytest.mark.parametrize("number", [OUT, ERR])
def test_an_impossible_size_before_run(stage: Stage, size: int, number: int) -> None:
    out, err = stage.pipe(), stage.pipe()
    shim = stage.start(out, err)
    shim.hold(number, b"x" * 2044, size)
    stage.run(shim)
    stage.write(b"fine\n", OUT)
    stage.write(b"fine\n", ERR)
    stage.rest(shim)
    said = f"slurmckpt: {size} held bytes of descriptor {number} are ignored, at most 1023 are possible\n"
    assert (out.read(), err.read()) == (b"fine\n", said.encode() + b"fine\n")
    assert shim.held_bytes(number) == b""


def test_an_impossible_size_while_it_runs(stage: Stage) -> None:
    """Whoever can write that memory can garble this output, and nothing else."""
    out = stage.pipe()
    shim = stage.started(out)
    rng = random.Random(5)
    with mmap.mmap(shim.held, 4096) as memory:
        for _ in range(300):
            struct.pack_into(
                "=I", memory, 0, rng.choice([0, 1, 1023, 1024, 2044, 4096, 2**32 - 1, rng.getrandbits(32)])
            )
            stage.write(b"y" * rng.randrange(1, 3000) + rng.choice([b"", b"\n"]))
            stage.rest(shim)
            out.read()
            assert len(shim.held_bytes(OUT)) < LIMIT
    shim.wire.send("EXIT", status=7 << 8)
    assert shim.process.wait(PATIENCE) == 7


def test_memory_is_the_state(stage: Stage) -> None:
    """What the coordinator writes while nothing is under way goes on from there: for a restore under the same shim."""
    out = stage.pipe()
    shim = stage.started(out)
    stage.write(b"of a run that is taken back")
    stage.rest(shim)
    shim.hold(OUT, b"of the checkpoint")
    stage.write(b", continued\n")
    stage.rest(shim)
    assert out.read() == b"of the checkpoint, continued\n"


# ---- ends ----


def test_standard_output_closed_early_ends_for_its_reader(stage: Stage) -> None:
    out, err = stage.pipe(), stage.pipe()
    shim = stage.started(out, err)
    stage.write(b"line\nrest")
    stage.close_end(OUT)
    wait_until(out.at_end, "the reader sees the end")
    assert out.seen == b"line\nrest"
    stage.write(b"the other goes on\n", ERR)
    wait_until(lambda: err.read() == b"the other goes on\n", "standard error")
    stage.close_end(ERR)
    shim.wire.send("SAY", text="said after all")
    wait_until(lambda: err.read() == b"the other goes on\nsaid after all\n", "standard error is open for SAY")
    shim.wire.send("EXIT", status=5 << 8)
    assert shim.process.wait(PATIENCE) == 5


@pytest.mark.parametrize("status", [0, 3 << 8, 9])
def test_exit_passes_on_what_is_there_and_what_is_held(stage: Stage, owner: int, status: int) -> None:
    out, err = stage.pipe(owner=owner), stage.pipe(owner=owner)
    shim = stage.started(out, err)
    stage.write(b"held")
    stage.rest(shim)
    shim.signal(signal.SIGSTOP)
    stage.write(b" and more\nrest")
    stage.write(b"e" * 60_000 + b"\nend", ERR)
    shim.wire.send("EXIT", status=status)
    # a process that the task left behind has the pipes still open
    shim.signal(signal.SIGCONT)
    assert out.read_to_end() == b"held and more\nrest"
    assert err.read_to_end() == b"e" * 60_000 + b"\nend"
    assert shim.process.wait(PATIENCE) == (-9 if status == 9 else status >> 8)
    with pytest.raises(BrokenPipeError):
        stage.write(b"x")


def test_a_writer_left_behind_does_not_keep_the_shim(coordinator: FakeCoordinator) -> None:
    """One that never stops writing: what the task wrote has come, and the shim has ended."""
    script = "echo first; setsid yes & echo last >&2; exit 6"
    _, (shim, other) = coordinator.run(shell(script), shell("exec sleep 1000"))
    code, out, err = shim.finish()
    assert (code, err) == (6, "last\n")
    assert out.startswith(("first\n", "y\n")) and "first\n" in out
    assert other.process.poll() is None


def test_a_silent_writer_left_behind_does_not_keep_the_shim(coordinator: FakeCoordinator) -> None:
    _, (shim, other) = coordinator.run(
        shell("echo text; printf rest; setsid sleep 1000 & exit 6"), shell("exec sleep 1000")
    )
    assert shim.finish() == (6, "text\nrest", "")
    assert other.process.poll() is None


def fill(stage: Stage, shim: Shim, size: int) -> bytes:
    """Writes so much that the original pipe is full and the shim waits for its reader."""
    lines = b"".join(b"%09d\n" % i for i in range(size // 10))
    stage.write_meanwhile(lines)
    wait_until(lambda: is_blocked(shim), "the shim waits for room")
    return lines


def test_a_slow_reader_stops_neither_signals_nor_the_other_stream(stage: Stage, owner: int) -> None:
    out, err = stage.pipe(owner=owner), stage.pipe(owner=owner)
    shim = stage.started(out, err)
    lines = fill(stage, shim, 1_000_000)
    for number in (signal.SIGUSR1, signal.SIGTERM):
        shim.signal(number)
        assert shim.wire.expect("SIGNAL").number("n") == number
    stage.write(b"meanwhile\n", ERR)
    wait_until(lambda: err.read() == b"meanwhile\n", "standard error")
    assert is_blocked(shim)
    wait_until(lambda: out.at_end(), "all lines")
    assert out.seen == lines


def test_exit_waits_for_a_slow_reader(stage: Stage, owner: int) -> None:
    out = stage.pipe(owner=owner, capacity=4096)
    shim = stage.started(out)
    lines = b"".join(b"%09d\n" % i for i in range(10_000))
    shim.signal(signal.SIGSTOP)
    stage.write(lines[:4000])
    shim.wire.send("EXIT", status=4 << 8)
    shim.signal(signal.SIGCONT)
    assert shim.process.wait(PATIENCE) == 4, "it all fits"
    assert out.read_to_end() == lines[:4000]

    out = stage.pipe(owner=owner, capacity=4096)
    shim = stage.started(out)
    end = stage.task[OUT]
    fcntl.fcntl(end, F_SETPIPE_SZ, 1 << 18)
    shim.signal(signal.SIGSTOP)
    stage.write(lines + b"rest")
    shim.wire.send("EXIT", status=4 << 8)
    shim.signal(signal.SIGCONT)
    wait_until(lambda: is_blocked(shim), "the shim waits for room")
    assert shim.process.poll() is None
    assert out.read_to_end() == lines + b"rest"
    assert shim.process.wait(PATIENCE) == 4


def test_killed_pod_and_a_reader_that_takes_nothing(stage: Stage) -> None:
    out = stage.pipe(capacity=4096)
    shim = stage.started(out)
    lines = fill(stage, shim, 100_000)
    shim.wire.close()
    assert shim.process.wait(PATIENCE) == -signal.SIGKILL
    taken = out.read_to_end()
    assert 0 < len(taken) <= 4096 and lines.startswith(taken)


def test_killed_pod_leaves_its_output(stage: Stage, owner: int) -> None:
    out = stage.pipe(owner=owner)
    shim = stage.started(out)
    shim.signal(signal.SIGSTOP)
    stage.write(b"line\nrest")
    shim.wire.close()
    shim.signal(signal.SIGCONT)
    assert out.read_to_end() == b"line\nrest"
    assert shim.process.wait(PATIENCE) == -signal.SIGKILL


def test_killed_shim_kills_its_task(coordinator: FakeCoordinator) -> None:
    pod, (shim,) = coordinator.run(["/usr/bin/yes"], stdout=subprocess.PIPE)
    task = pod.outer_pid(shim.pid_inside)
    shim.process.kill()
    assert pod.expect("EXITED").number("status") in (signal.SIGKILL, signal.SIGPIPE)
    pod.expect("DONE")
    assert not process_exists(task)


def test_reader_gone_is_sigpipe_for_the_task(coordinator: FakeCoordinator) -> None:
    pod, (shim,) = coordinator.run(["/usr/bin/yes"])
    assert shim.process.stdout is not None
    assert os.read(shim.process.stdout.fileno(), 2) == b"y\n"
    shim.process.stdout.close()
    shim.process.stdout = None
    assert shim.finish()[0] == -signal.SIGPIPE
    assert pod.expect("EXITED").number("status") == signal.SIGPIPE


def test_reader_gone_while_nothing_is_written(stage: Stage, owner: int) -> None:
    """The very next write of the task fails, as it would without a relay, and no signal comes from nowhere."""
    out, err = stage.pipe(owner=owner), stage.pipe()
    shim = stage.started(out, err)
    stage.write(b"half a line")
    stage.rest(shim)
    out.close_reader()
    end = stage.task[OUT]
    wait_until(lambda: bool(_errors(end)), "the shim has closed its side")
    with pytest.raises(BrokenPipeError):
        os.write(end, b"x")
    assert shim.held_bytes(OUT) == b""
    shim.signal(signal.SIGUSR2)
    assert shim.wire.expect("SIGNAL").number("n") == signal.SIGUSR2
    stage.write(b"the other goes on\n", ERR)
    wait_until(lambda: err.read() == b"the other goes on\n", "standard error")


def test_reader_gone_while_the_pipe_is_full(stage: Stage, owner: int) -> None:
    out = stage.pipe(owner=owner)
    shim = stage.started(out)
    fill(stage, shim, 1_000_000)
    out.close_reader()
    shim.signal(signal.SIGUSR2)
    assert shim.wire.expect("SIGNAL").number("n") == signal.SIGUSR2
    wait_until(lambda: OUT not in stage.task, "the writer got EPIPE")
    shim.signal(signal.SIGPIPE)
    assert shim.wire.expect("SIGNAL").number("n") == signal.SIGPIPE, "one from outside is passed on"
    assert not shim.wire.ready()
    shim.wire.send("EXIT", status=0)
    assert shim.process.wait(PATIENCE) == 0


def test_reader_gone_at_the_end(stage: Stage, owner: int) -> None:
    out = stage.pipe(owner=owner)
    shim = stage.started(out)
    shim.signal(signal.SIGSTOP)
    stage.write(b"nobody\nreads this")
    shim.wire.send("EXIT", status=2 << 8)
    out.close_reader()
    shim.signal(signal.SIGCONT)
    assert shim.process.wait(PATIENCE) == 2


def _errors(end: int) -> int:
    poll = select.poll()
    poll.register(end, 0)
    return dict(poll.poll(0)).get(end, 0) & select.POLLERR


# ---- our own lines ----


def test_say_comes_between_lines(stage: Stage, owner: int) -> None:
    err = stage.pipe(owner=owner)
    shim = stage.started(subprocess.DEVNULL, err)
    stage.write(b"line\nhalf", ERR)
    stage.rest(shim)
    shim.wire.send("SAY", text="said\x1b")
    wait_until(lambda: err.read() == b"line\nsaid?\n", "the line comes at once")
    assert shim.held_bytes(ERR) == b"half"
    stage.write(b" done\n", ERR)
    stage.rest(shim)
    assert err.read() == b"line\nsaid?\nhalf done\n"


def test_say_goes_to_the_pipe_of_both(stage: Stage) -> None:
    both = stage.pipe()
    shim = stage.started(both, both)
    stage.write(b"half", OUT)
    stage.rest(shim)
    shim.wire.send("SAY", text="said")
    wait_until(lambda: both.read() == b"said\n", "the line comes at once")
    stage.close_end(OUT)
    stage.close_end(ERR)
    wait_until(lambda: both.read() == b"said\nhalf", "the held rest")
    shim.wire.send("SAY", text="again")
    wait_until(lambda: both.read() == b"said\nhalf\nagain\n", "it starts a line of its own")


def test_say_waits_for_the_end_of_a_long_line(stage: Stage) -> None:
    err = stage.pipe()
    shim = stage.started(subprocess.DEVNULL, err)
    stage.write(b"x" * 1500, ERR)
    stage.rest(shim)
    shim.wire.send("SAY", text="one")
    shim.wire.send("SAY", text="two")
    stage.write(b"y\nhalf", ERR)
    wait_until(lambda: b"two" in err.read(), "both lines")
    assert err.read() == b"x" * 1500 + b"y\none\ntwo\n"
    assert shim.held_bytes(ERR) == b"half"


def test_say_does_not_wait_for_ever(stage: Stage) -> None:
    """A progress bar is one line that never ends."""
    err = stage.pipe()
    shim = stage.started(subprocess.DEVNULL, err)
    stage.write(b"x" * 1500, ERR)
    stage.rest(shim)
    shim.wire.send("SAY", text="said")
    wait_until(lambda: b"said" in err.read(), "the line")
    assert err.read() == b"x" * 1024 + b"\nsaid\n"
    assert shim.held_bytes(ERR) == b"x" * 476


def test_say_while_the_pipe_is_full(stage: Stage) -> None:
    both = stage.pipe()
    shim = stage.started(both, both)
    lines = fill(stage, shim, 500_000)
    for i in range(100):
        shim.wire.send("SAY", text=f"said {i} " + "z" * 1000)
    shim.signal(signal.SIGUSR1)
    assert shim.wire.expect("SIGNAL").number("n") == signal.SIGUSR1, "nothing waits for the reader"
    wait_until(lambda: both.read().count(b"\n") >= len(lines) // 10 and OUT not in stage.task, "all lines")
    stage.rest(shim)
    seen = both.read().splitlines(keepends=True)
    said = [line for line in seen if line.startswith(b"said")]
    assert b"".join(line for line in seen if not line.startswith(b"said")) == lines
    numbers = [int(line.split()[1]) for line in said]
    assert said == [f"said {i} {'z' * 1000}\n".encode() for i in numbers], "each of them is whole"
    assert numbers == sorted(set(numbers)) and len(numbers) >= 10


def test_say_and_exit_at_once(stage: Stage) -> None:
    err = stage.pipe()
    shim = stage.started(subprocess.DEVNULL, err)
    shim.signal(signal.SIGSTOP)
    stage.write(b"x" * 1500, ERR)
    shim.wire.send("SAY", text="the end")
    shim.wire.send("EXIT", status=1 << 8)
    shim.signal(signal.SIGCONT)
    assert err.read_to_end() in (b"x" * 1500 + b"\nthe end\n", b"the end\n" + b"x" * 1500)
    assert shim.process.wait(PATIENCE) == 1


def test_say_when_nobody_reads(stage: Stage) -> None:
    err = stage.pipe()
    shim = stage.started(subprocess.DEVNULL, err)
    err.close_reader()
    shim.wire.send("SAY", text="to nobody")
    shim.signal(signal.SIGUSR1)
    assert shim.wire.expect("SIGNAL").number("n") == signal.SIGUSR1
    assert not shim.wire.ready()


# ---- what a capture relies on ----


def drained(shim: Shim, *pipes: int) -> str:
    """Why output is still under way, or nothing."""
    result = asyncio.run(drain(list(pipes), [shim.process.pid], 0.2))
    return "" if result.ok else result.reason


def test_drain_sees_a_shim_that_holds_as_one_at_rest(stage: Stage) -> None:
    out = stage.pipe()
    shim = stage.started(out, stage.pipe())
    stage.write(b"line\nhalf")
    stage.rest(shim)
    assert out.read() == b"line\n"
    assert drained(shim, stage.task[OUT], stage.task[ERR]) == ""


def test_drain_sees_a_shim_that_waits_for_its_reader(stage: Stage) -> None:
    out = stage.pipe()
    shim = stage.started(out)
    # so much that nothing stays in the task's own pipe: one buffer is in the shim
    stage.write(b"x\n" * 32768)
    wait_until(lambda: waiting_bytes(out.reader) == 65536, "the reader's pipe is full")
    stage.write(b"y\n" * 500)
    wait_until(lambda: is_blocked(shim) and waiting_bytes(stage.task[OUT]) == 0, "the shim waits for room")
    assert f"holds output that it cannot write to pipe:[{out.inode}]" in drained(shim, stage.task[OUT])
    out.read()
    stage.rest(shim)
    out.read()
    assert drained(shim, stage.task[OUT]) == ""


def test_nobody_but_the_task_holds_its_end(coordinator: FakeCoordinator) -> None:
    """Otherwise the shim would never see that the task has closed it."""
    pod, (shim,) = coordinator.run(shell("exec 1>&- ; exec sleep 1000"))
    task = pod.outer_pid(shim.pid_inside)
    wait_until(lambda: Path(f"/proc/{task}/comm").read_text() == "sleep\n", "the task has closed it")
    assert shim.process.stdout is not None
    assert shim.process.stdout.read() == b""
    assert not children(task)


def test_out_of_descriptors_is_said_and_the_task_runs(coordinator: FakeCoordinator) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))

    shim = coordinator.shim(shell("echo ran"), before_exec=limit)
    code, out, err = shim.finish()
    assert (code, out) == (0, "ran\n")
    assert err.startswith("slurmckpt: this task runs without checkpoints: cannot make a pipe for the task's output: ")
    assert os.strerror(errno.EMFILE) in err
