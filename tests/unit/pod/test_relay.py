"""The shim's relay: whole lines go on, the beginning of a line is held where the coordinator can read it.

Most tests play coordinator, pod init and task themselves: they write into the end that the task would get, so that they
know when which byte came.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import pty
import random
import stat
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slurmckpt.capture.waits import observe
from tests.unit.awaiting import PATIENCE, wait_until
from tests.unit.pod.harness import POD, FakeCoordinator, shell
from tests.unit.pod.payloads import payload_header
from tests.unit.pod.relaying import (
    ERR,
    F_GETPIPE_SZ,
    OUT,
    Stage,
)

pytestmark = pytest.mark.root
LIMIT = 1024
F_GET_SEALS = 1034
SEAL, SHRINK, GROW, WRITE = 1, 2, 4, 8


def split(stream: bytes) -> tuple[bytes, bytes]:
    """What of a task's output has to be passed on, and what has to be held."""
    lines = stream.rfind(b"\n") + 1
    held = (len(stream) - lines) % LIMIT
    return stream[: len(stream) - held], stream[len(stream) - held :]


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
