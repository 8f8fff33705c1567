"""What a thread of another process sleeps for, found out from outside; and the arguments of such calls, taken apart."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.capture.waits import Kind, observe, parse_epoll, parse_fd_set, parse_pollfds
from tests.unit.awaiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

SLEEPS = {
    "poll": ("import select; p = select.poll(); p.register({r}, 1); p.register({w}, 4); p.poll()", {"r"}, {"w"}),
    "select": ("import select; select.select([{r}], [{w}], [])", {"r"}, {"w"}),
    "epoll": (
        "import select; e = select.epoll(); e.register({r}, 1); e.register({w}, 4); e.poll()",
        {"r"},
        {"w"},
    ),
    "read": ("import os; os.read({r}, 1)", {"r"}, set[str]()),
}


@pytest.mark.parametrize("call", SLEEPS)
def test_what_a_thread_sleeps_for(carry: Callable[..., int], call: str) -> None:
    code, reads, writes = SLEEPS[call]
    reader, writer = os.pipe()
    full_reader, full_writer = os.pipe()
    try:
        os.set_blocking(full_writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(full_writer, bytes(4096))
        numbers = {"r": reader, "w": full_writer}
        pid = carry("print('up', flush=True)\n" + code.format(**numbers), reader, full_writer)
        # A thread that has just entered its call may wait for something else in there first: a page, a lock.
        while (wait := observe(pid, pid)) is None or wait.kind is not Kind.DESCRIPTORS or observe(pid, pid) != wait:
            time.sleep(0.001)
        assert wait.reads == {numbers[name] for name in reads}
        assert wait.writes == {numbers[name] for name in writes}
    finally:
        for descriptor in (reader, writer, full_reader, full_writer):
            os.close(descriptor)


def test_an_interrupted_poll_is_still_a_poll(carry: Callable[..., int], pipe: tuple[int, int]) -> None:
    """After SIGSTOP and SIGCONT the kernel continues poll(2) as restart_syscall(2)."""
    code = f"import select\nprint('up', flush=True)\np = select.poll()\np.register({pipe[0]}, 1)\np.poll(100000)"
    pid = carry(code, pipe[0], pipe[0])
    for number in (signal.SIGSTOP, signal.SIGCONT):
        await_state(pid, "S" if number == signal.SIGSTOP else "T")
        os.kill(pid, number)
    await_state(pid, "S")
    wait = observe(pid, pid)
    assert wait is not None
    assert (wait.kind, wait.reads) == (Kind.DESCRIPTORS, frozenset({pipe[0]}))


def await_state(pid: int, state: str) -> None:
    wait_until(lambda: (wait := observe(pid, pid)) is not None and wait.state == state, f"it is in state {state}")


def test_threads_that_do_not_wait_for_descriptors(carry: Callable[..., int], pipe: tuple[int, int]) -> None:
    pid = carry("import signal\nprint('up', flush=True)\nsignal.pause()", pipe[0], pipe[0])
    await_state(pid, "S")
    wait = observe(pid, pid)
    assert wait is not None
    assert (wait.kind, wait.reads, wait.writes) == (Kind.ELSE, frozenset(), frozenset())
    assert observe(pid, 2**30) is None


events = st.integers(0, 0x7FFF)


@given(st.lists(st.tuples(st.integers(-3, 5000), events)))
def test_pollfds(entries: list[tuple[int, int]]) -> None:
    array = b"".join(struct.pack("=ihh", fd, mask, 0) for fd, mask in entries)
    reads, writes = parse_pollfds(array)
    assert reads == {fd for fd, mask in entries if fd >= 0 and mask & (select.POLLIN | select.POLLPRI)}
    assert writes == {fd for fd, mask in entries if fd >= 0 and mask & select.POLLOUT}


@given(st.sets(st.integers(0, 1023)), st.integers(0, 1024))
def test_fd_sets(descriptors: set[int], count: int) -> None:
    bits = sum(1 << fd for fd in descriptors)
    mask = struct.pack("=16Q", *(bits >> 64 * i & (2**64 - 1) for i in range(16)))
    assert parse_fd_set(mask, count) == {fd for fd in descriptors if fd < count}


def test_an_edge_triggered_interest_in_writing_says_nothing() -> None:
    text = b"pos:\t0\nflags:\t02\nmnt_id:\t15\ntfd:        5 events:       19 data:  5\n"
    text += b"tfd:  6 events: 80000005 data: 6\ntfd: 7 events: 4 data: 7\n"
    assert parse_epoll(text) == (frozenset({5, 6}), frozenset({7}))
