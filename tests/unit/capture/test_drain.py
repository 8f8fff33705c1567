"""drain() against real processes that carry output on, as event loops and as plain loops do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurmckpt.capture.drain import DrainResult, drain
from tests.unit.awaiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

# An event loop that reads one descriptor and writes another, and asks for writability while it holds data.
EVENT_LOOP = """
import os, select, socket, stat, sys
source, sink, chunk, timeout = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
os.set_blocking(source, False)
os.set_blocking(sink, False)
held = b""
print("up", flush=True)
while True:
    poll = select.poll()
    if len(held) < 65536:
        poll.register(source, select.POLLIN)
    if held:
        poll.register(sink, select.POLLOUT)
    for fd, events in poll.poll(timeout):
        if fd == source and events & select.POLLIN:
            held += os.read(source, chunk)
        elif fd == sink:
            held = held[os.write(sink, held[:chunk]):]
"""
OTHER_LOOPS = {
    "epoll": """
import os, select, sys
source, sink = int(sys.argv[1]), int(sys.argv[2])
epoll = select.epoll()
epoll.register(source, select.EPOLLIN)
print("up", flush=True)
while True:
    epoll.poll()
    os.write(sink, os.read(source, 1000))
""",
    "select": """
import os, select, sys
source, sink = int(sys.argv[1]), int(sys.argv[2])
print("up", flush=True)
while True:
    select.select([source], [], [])
    os.write(sink, os.read(source, 1000))
""",
    "blocking read": """
import os, sys
source, sink = int(sys.argv[1]), int(sys.argv[2])
print("up", flush=True)
while True:
    os.write(sink, os.read(source, 1000))
""",
    "blocking read, sleeps with what it read": """
import os, sys, time
source, sink = int(sys.argv[1]), int(sys.argv[2])
print("up", flush=True)
while True:
    data = os.read(source, 100000)
    time.sleep(0.02)
    os.write(sink, data)
""",
    "two threads": """
import os, queue, sys, threading
source, sink = int(sys.argv[1]), int(sys.argv[2])
handed = queue.SimpleQueue()
def write():
    while True:
        os.write(sink, handed.get())
threading.Thread(target=write, daemon=True).start()
print("up", flush=True)
while True:
    handed.put(os.read(source, 1000))
""",
    "a second thread that wakes up every millisecond": """
import os, sys, threading, time
source, sink = int(sys.argv[1]), int(sys.argv[2])
def tick():
    while True:
        time.sleep(0.001)
threading.Thread(target=tick, daemon=True).start()
print("up", flush=True)
while True:
    os.write(sink, os.read(source, 1000))
""",
}


def run(pipes: Sequence[Any], carriers: Sequence[int], deadline: float = 20.0, **more: Any) -> DrainResult:
    return asyncio.run(drain(pipes, carriers, deadline, **more))


def comes_to(reason: str, pipes: Sequence[Any], carriers: Sequence[int]) -> None:
    """In the end this is what is under way; before that, the carriers may not have come to it."""

    def result() -> bool:
        found = run(pipes, carriers, 0.1)
        assert not found.ok
        return re.fullmatch(reason, found.reason) is not None

    wait_until(result, reason)


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


@pytest.fixture
def output(tmp_path: Path) -> Iterator[int]:
    """The file in which all output ends."""
    descriptor = os.open(tmp_path / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    yield descriptor
    os.close(descriptor)


def size_of(descriptor: int) -> int:
    return os.fstat(descriptor).st_size


def test_nothing_to_wait_for() -> None:
    assert run([], []) == DrainResult(True, "")


@pytest.mark.parametrize("chunk", [17, 4096, 65536])
def test_one_carrier_to_a_file(carry: Callable[..., int], pipe: tuple[int, int], output: int, chunk: int) -> None:
    pid = carry(EVENT_LOOP, pipe[0], output, chunk, 60000)
    written = 0
    for _ in range(15):
        data = bytes(random.randrange(1, 30000))
        write_all(pipe[1], data)
        written += len(data)
        assert run([pipe[1]], [pid]) == DrainResult(True, "")
        assert size_of(output) == written


@pytest.mark.parametrize("loop", OTHER_LOOPS)
def test_carriers_of_all_kinds(carry: Callable[..., int], pipe: tuple[int, int], output: int, loop: str) -> None:
    pid = carry(OTHER_LOOPS[loop], pipe[0], output)
    written = 0
    for _ in range(15):
        data = bytes(random.randrange(1, 30000))
        write_all(pipe[1], data)
        written += len(data)
        assert run([pipe[1]], [pid]) == DrainResult(True, "")
        assert size_of(output) == written


def tcp_pair(family: socket.AddressFamily, host: str) -> tuple[socket.socket, socket.socket]:
    with socket.socket(family) as server:
        server.bind((host, 0))
        server.listen()
        client = socket.create_connection(server.getsockname()[:2])
        return client, server.accept()[0]


PAIRS: dict[str, Callable[[], tuple[socket.socket, socket.socket]]] = {
    "tcp": lambda: tcp_pair(socket.AF_INET, "127.0.0.1"),
    "tcp6": lambda: tcp_pair(socket.AF_INET6, "::1"),
    "unix": lambda: socket.socketpair(),
    "unix packets": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_two_carriers_with_a_connection_between(
    carry: Callable[..., int], pipe: tuple[int, int], output: int, kind: str
) -> None:
    a, b = PAIRS[kind]()
    first = carry(EVENT_LOOP, pipe[0], a.fileno(), 1500, 60000)
    second = carry(EVENT_LOOP, b.fileno(), output, 1500, 60000)
    a.close()
    b.close()
    written = 0
    for _ in range(15):
        data = bytes(random.randrange(1, 100000))
        write_all(pipe[1], data)
        written += len(data)
        assert run([pipe[1]], [first, second]) == DrainResult(True, "")
        assert size_of(output) == written


def test_it_is_quick(carry: Callable[..., int], pipe: tuple[int, int], output: int) -> None:
    """Typically below 10 ms; the bound leaves room for a busy machine."""
    a, b = PAIRS["tcp"]()
    first = carry(EVENT_LOOP, pipe[0], a.fileno(), 65536, 60000)
    second = carry(EVENT_LOOP, b.fileno(), output, 65536, 60000)
    times = []
    for _ in range(20):
        write_all(pipe[1], bytes(2000))
        began = time.perf_counter()
        assert run([pipe[1]], [first, second]).ok
        times.append(time.perf_counter() - began)
    print(f"best {min(times) * 1e3:.1f} ms, worst {max(times) * 1e3:.1f} ms")
    assert min(times) < 0.5


def test_a_loop_that_wakes_up_by_itself_converges(
    carry: Callable[..., int], pipe: tuple[int, int], output: int
) -> None:
    pid = carry(EVENT_LOOP, pipe[0], output, 4096, 10)
    write_all(pipe[1], b"x" * 10000)
    assert run([pipe[1]], [pid]).ok
    assert size_of(output) == 10000


def test_a_pipe_that_nobody_reads() -> None:
    reader, writer = os.pipe()
    try:
        assert run([reader], []).ok
        os.write(writer, b"12345")
        expected = DrainResult(False, f"5 bytes of output are still in a pipe (pipe:[{os.fstat(reader).st_ino}])")
        began = time.monotonic()
        assert run([reader], [], 0.05) == expected
        assert time.monotonic() - began >= 0.05
        assert run([f"/proc/{os.getpid()}/fd/{writer}"], [], 0.0) == expected
    finally:
        os.close(reader)
        os.close(writer)


def test_a_reader_that_is_stopped(carry: Callable[..., int], pipe: tuple[int, int], output: int) -> None:
    a, b = PAIRS["tcp"]()
    first = carry(EVENT_LOOP, pipe[0], a.fileno(), 4096, 60000)
    second = carry(EVENT_LOOP, b.fileno(), output, 4096, 60000)
    a.close()
    b.close()
    os.kill(second, signal.SIGSTOP)
    try:
        write_all(pipe[1], bytes(3000))
        comes_to(rf"process {second} \({comm(second)}\), which carries output, is stopped", [pipe[1]], [first, second])
    finally:
        os.kill(second, signal.SIGCONT)
    assert run([pipe[1]], [first, second]).ok
    assert size_of(output) == 3000


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()


def test_a_reader_that_does_not_take_what_arrived(carry: Callable[..., int], pipe: tuple[int, int]) -> None:
    """The second carrier is blocked by a full pipe that nobody empties: its queue and its memory stay filled."""
    a, b = PAIRS["tcp"]()
    full_reader, full_writer = os.pipe()
    first = carry(EVENT_LOOP, pipe[0], a.fileno(), 65536, 60000)
    second = carry(EVENT_LOOP, b.fileno(), full_writer, 65536, 60000)
    a.close()
    b.close()
    try:
        thread = threading.Thread(target=write_all, args=(pipe[1], bytes(300000)))
        thread.start()
        thread.join()
        comes_to(
            rf"process {second} \(.*\) holds output that it cannot write to pipe:\[\d+\]"
            rf"|\d+ bytes of output still wait to be read by process {second} \(.*\)"
            rf"|\d+ bytes of output are still on their way from process {first} \(.*\)",
            [pipe[1]],
            [first, second],
        )
        taken = 0
        os.set_blocking(full_reader, False)

        def empty() -> None:
            nonlocal taken
            while taken < 300000:
                select.select([full_reader], [], [])
                taken += len(os.read(full_reader, 65536))

        thread = threading.Thread(target=empty)
        thread.start()
        assert run([pipe[1]], [first, second]).ok
        thread.join()
        assert taken == 300000
    finally:
        os.close(full_reader)
        os.close(full_writer)


def test_a_carrier_that_holds_what_it_cannot_write(carry: Callable[..., int], pipe: tuple[int, int]) -> None:
    full_reader, full_writer = os.pipe()
    inode = os.fstat(full_writer).st_ino
    try:
        os.set_blocking(full_writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(full_writer, bytes(4096))
        pid = carry(EVENT_LOOP, pipe[0], full_writer, 4096, 60000)
        write_all(pipe[1], b"hello")
        expected = rf"process {pid} \({comm(pid)}\) holds output that it cannot write to pipe:\[{inode}\]"
        comes_to(expected, [pipe[1]], [pid])
        # The same pipe as a way towards the ranks is not output.
        assert run([pipe[1]], [pid], inputs=[full_writer]).ok
    finally:
        os.close(full_reader)
        os.close(full_writer)


def test_a_carrier_that_does_not_wait_for_its_input(carry: Callable[..., int], pipe: tuple[int, int]) -> None:
    pid = carry("import time\nprint('up', flush=True)\ntime.sleep(1000)", pipe[0], pipe[0])
    inode = os.fstat(pipe[0]).st_ino
    comes_to(rf"process {pid} \({comm(pid)}\) is not waiting for output from pipe:\[{inode}\]", [pipe[1]], [pid])
    # With the last writer gone there is nothing to wait for any more.
    with contextlib.ExitStack() as stack:
        ours = os.open(f"/proc/self/fd/{pipe[0]}", os.O_RDONLY)
        stack.callback(os.close, ours)
        os.close(pipe[1])
        assert run([ours], [pid]).ok


def test_a_carrier_that_never_rests(carry: Callable[..., int], pipe: tuple[int, int]) -> None:
    pid = carry("print('up', flush=True)\nwhile True: pass", pipe[0], pipe[0])
    comes_to(rf"process {pid} \({comm(pid)}\), which carries output, is still busy", [pipe[1]], [pid])


def test_only_the_way_out_of_a_connection_counts(carry: Callable[..., int], pipe: tuple[int, int], output: int) -> None:
    """What the second carrier sent back and the first does not read is not output."""
    a, b = PAIRS["tcp"]()
    first = carry(EVENT_LOOP, pipe[0], a.fileno(), 4096, 60000)
    second = carry(EVENT_LOOP, b.fileno(), output, 4096, 60000)
    b.sendall(b"towards the ranks")
    a.close()
    b.close()
    write_all(pipe[1], bytes(5000))
    assert run([pipe[1]], [first, second]).ok
    assert size_of(output) == 5000


def test_connections_to_others_do_not_matter(carry: Callable[..., int], pipe: tuple[int, int]) -> None:
    """Bytes in the queue of a process that is no carrier are not ours to wait for."""
    a, b = PAIRS["tcp"]()
    with a, b:
        pid = carry(EVENT_LOOP, pipe[0], a.fileno(), 4096, 60000)
        write_all(pipe[1], bytes(5000))
        assert run([pipe[1]], [pid]).ok
        assert len(b.recv(5000, socket.MSG_WAITALL)) == 5000


def test_carriers_and_pipes_that_are_gone() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    assert run([f"/proc/{ended.pid}/fd/1"], [ended.pid]) == DrainResult(True, "")


def test_what_is_not_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"file is not a pipe$"):
        run([tmp_path / "file"], [])


def test_descriptors_of_the_caller_stay_open_and_no_others_are_left(
    carry: Callable[..., int], pipe: tuple[int, int], output: int
) -> None:
    a, b = PAIRS["tcp"]()
    first = carry(EVENT_LOOP, pipe[0], a.fileno(), 4096, 60000)
    second = carry(EVENT_LOOP, b.fileno(), output, 4096, 60000)
    before = sorted(os.listdir("/proc/self/fd"))
    assert run([pipe[1], f"/proc/{first}/fd/{pipe[0]}"], [first, second]).ok
    assert sorted(os.listdir("/proc/self/fd")) == before
    os.fstat(pipe[1])
