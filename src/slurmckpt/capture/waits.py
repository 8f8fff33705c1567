"""What a thread of another process is sleeping for: the system call it is in, and the descriptors that call waits for.

The kernel shows call and arguments in /proc/PID/task/TID/syscall; for poll(2) and select(2) the sets of descriptors
are then read from the process's memory, for epoll from the fdinfo of the epoll descriptor. 64-bit processes only;
others count as busy.
"""

from __future__ import annotations

import os
import platform
import re
import select
import struct
from dataclasses import dataclass
from enum import Enum

from slurmckpt.capture import procfs

_MAX_POLLED = 65536
_MAX_SELECTED = 65536
_POLLFD = struct.Struct("=ihh")
_EPOLLET = 1 << 31
_INPUT = select.POLLIN | select.POLLPRI
_TARGET = re.compile(rb"^tfd:\s*(\d+) events:\s*([0-9a-f]+)", re.MULTILINE)


class Kind(Enum):
    """DESCRIPTORS: waits for descriptors that are known. ELSE: waits for another thread, a child, a signal or the time.

    BUSY: runs, writes, is stopped, or is in a call of which we do not know what it waits for.
    """

    DESCRIPTORS = "descriptors"
    ELSE = "else"
    BUSY = "busy"


@dataclass(frozen=True)
class Wait:
    """One thread at one moment. Two equal values of one thread mean that it did not run in between.

    switches: how often it was taken off a CPU so far, of its own will or not. reads, writes: descriptors that it
    waits to read from and to write to.
    """

    kind: Kind
    state: str
    switches: int
    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Calls:
    """System call numbers of one architecture. read: calls that wait for the descriptor in their first argument."""

    poll: frozenset[int]
    select: frozenset[int]
    epoll: frozenset[int]
    read: frozenset[int]
    other: frozenset[int]
    restart: int


# arch/x86/entry/syscalls/syscall_64.tbl: read, pread64, readv, accept, recvfrom, recvmsg, accept4, preadv, recvmmsg,
# preadv2; pause, nanosleep, wait4, rt_sigtimedwait, rt_sigsuspend, futex, clock_nanosleep, waitid, futex_waitv,
# futex_wait
_X86_64 = _Calls(
    poll=frozenset({7, 271}),
    select=frozenset({23, 270}),
    epoll=frozenset({232, 281, 441}),
    read=frozenset({0, 17, 19, 43, 45, 47, 288, 295, 299, 327}),
    other=frozenset({34, 35, 61, 128, 130, 202, 230, 247, 449, 455}),
    restart=219,
)
# include/uapi/asm-generic/unistd.h, the same calls (it has neither poll, select, epoll_wait nor pause)
_GENERIC = _Calls(
    poll=frozenset({73}),
    select=frozenset({72}),
    epoll=frozenset({22, 441}),
    read=frozenset({63, 65, 67, 69, 202, 207, 212, 242, 243, 286}),
    other=frozenset({95, 98, 101, 115, 133, 137, 260, 449, 455}),
    restart=128,
)
_CALLS = {"x86_64": _X86_64, "aarch64": _GENERIC}.get(platform.machine())


def observe(pid: int, tid: int) -> Wait | None:
    """What thread `tid` of process `pid` does now, or None when it has gone."""
    directory = f"{procfs.PROC}/{pid}/task/{tid}"
    status = procfs.read_record(f"{directory}/status")
    if not status:
        return None
    fields = procfs.fields(status)
    try:
        state = fields["State"][:1]
        switches = int(fields["voluntary_ctxt_switches"]) + int(fields["nonvoluntary_ctxt_switches"])
    except (KeyError, ValueError):
        return None
    if state in "ZX":
        return None
    busy = Wait(Kind.BUSY, state, switches)
    if state != "S":
        return busy
    # Read after the counters: if those are still the same later on, the thread has been in this call all the time.
    words = (procfs.read_record(f"{directory}/syscall") or b"").split()
    if len(words) < 7 or _CALLS is None:
        return busy
    call, arguments = int(words[0]), [int(word, 16) for word in words[1:7]]
    if call == _CALLS.restart:
        # A sleep that a signal or a stop interrupted and that went on: its arguments are still those of the first call.
        if b"poll" not in (procfs.read_record(f"{directory}/wchan") or b""):
            return Wait(Kind.ELSE, state, switches)
        call = min(_CALLS.poll)
    if call in _CALLS.other:
        return Wait(Kind.ELSE, state, switches)
    sets = _descriptors(pid, call, arguments, _CALLS)
    return busy if sets is None else Wait(Kind.DESCRIPTORS, state, switches, *sets)


def _descriptors(
    pid: int, call: int, arguments: list[int], calls: _Calls
) -> tuple[frozenset[int], frozenset[int]] | None:
    """(waits to read, waits to write), or None when that cannot be told."""
    if call in calls.read:
        return frozenset({arguments[0]}), frozenset()
    if call in calls.epoll:
        return _watched(pid, arguments[0])
    if call in calls.poll:
        count = arguments[1]
        array = _memory(pid, arguments[0], count * _POLLFD.size) if count <= _MAX_POLLED else None
        return None if array is None else parse_pollfds(array)
    if call in calls.select:
        count = arguments[0]
        if count > _MAX_SELECTED:
            return None
        # Whole longs, as the kernel reads them.
        size = (count + 63) // 64 * 8
        masks = [_memory(pid, address, size) if address else b"" for address in arguments[1:3]]
        if masks[0] is None or masks[1] is None:
            return None
        return parse_fd_set(masks[0], count), parse_fd_set(masks[1], count)
    return None


def parse_pollfds(array: bytes) -> tuple[frozenset[int], frozenset[int]]:
    """(reads, writes) of an array of struct pollfd. A negative descriptor is one to be left out (poll(2))."""
    entries = [entry for entry in _POLLFD.iter_unpack(array) if entry[0] >= 0]
    reads = frozenset(fd for fd, events, _ in entries if events & _INPUT)
    writes = frozenset(fd for fd, events, _ in entries if events & select.POLLOUT)
    return reads, writes


def parse_fd_set(mask: bytes, count: int) -> frozenset[int]:
    """The descriptors below `count` that are in an fd_set: an array of unsigned longs (select(2))."""
    bits = 0
    for index, (word,) in enumerate(struct.iter_unpack("=Q", mask[: len(mask) // 8 * 8])):
        bits |= word << (64 * index)
    return frozenset(fd for fd in range(count) if bits >> fd & 1)


def parse_epoll(text: bytes) -> tuple[frozenset[int], frozenset[int]]:
    """(reads, writes) of the fdinfo of an epoll descriptor.

    An edge-triggered interest in writing is usually left in place for ever, so it says nothing and is left out.
    """
    reads, writes = set(), set()
    for match in _TARGET.finditer(text):
        descriptor, events = int(match[1]), int(match[2], 16)
        if events & (select.EPOLLIN | select.EPOLLPRI):
            reads.add(descriptor)
        if events & select.EPOLLOUT and not events & _EPOLLET:
            writes.add(descriptor)
    return frozenset(reads), frozenset(writes)


def _watched(pid: int, descriptor: int) -> tuple[frozenset[int], frozenset[int]] | None:
    text = procfs.read(f"{procfs.PROC}/{pid}/fdinfo/{descriptor}", 16 << 20)
    return None if text is None else parse_epoll(text)


def _memory(pid: int, address: int, size: int) -> bytes | None:
    """`size` bytes of a process's memory, or None when they cannot be read as a whole."""
    if size == 0:
        return b""
    try:
        memory = os.open(f"{procfs.PROC}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if procfs.is_gone(error):
            return None
        raise
    try:
        data = os.pread(memory, size, address)
    except (OSError, OverflowError):
        # Not mapped (any more): the thread has left the call.
        return None
    finally:
        os.close(memory)
    return data if len(data) == size else None
