"""TCP connections inside the pod, in each state that a program can hold one in: what they tell stays what it was.

Looked at twice, before the checkpoint and when the file `go` is there: both looks are printed where they differ. Then
each connection is used to its end, as a program would that nobody has disturbed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

EVENTS = {
    select.POLLIN: "IN", select.POLLPRI: "PRI", select.POLLOUT: "OUT", select.POLLERR: "ERR", select.POLLHUP: "HUP",
    select.POLLRDHUP: "RDHUP",
}  # fmt: skip
# include/net/tcp_states.h, from 1 on.
STATES = (
    "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT", "LAST_ACK",
    "LISTEN", "CLOSING",
)  # fmt: skip
BLOCK = bytes(range(256)) * 256


@dataclass
class Case:
    """ends: what is looked at. states: what the kernel must say of them. use: what follows, which raises if it fails.

    kept: what only has to stay open.
    """

    ends: list[socket.socket]
    states: list[str]
    use: Callable[[], None]
    kept: object = None


def pair() -> tuple[socket.socket, socket.socket]:
    """A connection, both ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


def fill(one: socket.socket) -> int:
    """Write until nothing more fits; how many bytes."""
    one.setblocking(False)
    sent = 0
    # What the other end takes a moment later makes room again.
    while select.select([], [one], [], 0.5)[1]:
        with contextlib.suppress(BlockingIOError):
            sent += one.send(BLOCK[sent % len(BLOCK) :])
    one.setblocking(True)
    return sent


def equal(got: object, wanted: object) -> None:
    """Fail with both values."""
    if got != wanted:
        raise AssertionError(f"{str(got)[:200]} instead of {str(wanted)[:200]}")


def rest(one: socket.socket, wanted: bytes) -> None:
    """These bytes come, then the end, and no error."""
    got = b""
    while piece := one.recv(1 << 20):
        got += piece
    equal((len(got), got == wanted), (len(wanted), True))
    equal(one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0)


def blocks(count: int) -> bytes:
    """What fill() has written."""
    return (BLOCK * (count // len(BLOCK) + 1))[:count]


def is_refused(one: socket.socket) -> None:
    """The first write goes nowhere, and the answer to it tells."""
    one.send(b"to nobody")
    poll = select.poll()
    poll.register(one, select.POLLHUP)
    poll.poll(5000)
    equal(one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), errno.EPIPE)


def established() -> Case:
    one, other = pair()

    def use() -> None:
        one.sendall(b"question")
        equal(other.recv(99), b"question")
        other.close()
        rest(one, b"")

    return Case([one, other], ["ESTABLISHED", "ESTABLISHED"], use)


def other_end_gone() -> Case:
    one, other = pair()
    other.close()

    def use() -> None:
        rest(one, b"")
        is_refused(one)

    return Case([one], ["CLOSE_WAIT"], use)


def other_end_gone_6() -> Case:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        one = socket.create_connection(listener.getsockname()[:2])
        listener.accept()[0].close()

    def use() -> None:
        rest(one, b"")
        is_refused(one)

    return Case([one], ["CLOSE_WAIT"], use)


def other_end_gone_mapped() -> Case:
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        one = socket.create_connection(("127.0.0.1", listener.getsockname()[1]))
        other = listener.accept()[0]
        one.close()

    def use() -> None:
        rest(other, b"")
        is_refused(other)

    return Case([other], ["CLOSE_WAIT"], use)


def other_end_gone_unread() -> Case:
    one, other = pair()
    other.sendall(blocks(5000))
    other.close()

    def use() -> None:
        rest(one, blocks(5000))
        is_refused(one)

    return Case([one], ["CLOSE_WAIT"], use)


def half_closed() -> Case:
    one, other = pair()
    other.sendall(b"last words")
    other.shutdown(socket.SHUT_WR)

    def use() -> None:
        rest(one, b"last words")
        one.sendall(b"answer")
        one.close()
        rest(other, b"answer")

    return Case([one, other], ["CLOSE_WAIT", "FIN_WAIT2"], use)


def end_not_delivered() -> Case:
    one, other = pair()
    count = fill(one)
    one.shutdown(socket.SHUT_WR)

    def use() -> None:
        rest(other, blocks(count))
        other.sendall(b"answer")
        other.close()
        rest(one, b"answer")

    return Case([one, other], ["FIN_WAIT1", "ESTABLISHED"], use)


def both_ends_told_one_delivered() -> Case:
    one, other = pair()
    count = fill(one)
    one.shutdown(socket.SHUT_WR)
    other.shutdown(socket.SHUT_WR)

    def use() -> None:
        rest(one, b"")
        rest(other, blocks(count))

    return Case([one, other], ["CLOSING", "FIN_WAIT2"], use)


def last_end_not_delivered() -> Case:
    one, other = pair()
    other.shutdown(socket.SHUT_WR)
    count = fill(one)
    one.shutdown(socket.SHUT_WR)

    def use() -> None:
        rest(one, b"")
        rest(other, blocks(count))

    return Case([one, other], ["LAST_ACK", "FIN_WAIT2"], use)


def over() -> Case:
    one, other = pair()
    one.shutdown(socket.SHUT_WR)
    other.shutdown(socket.SHUT_WR)

    def use() -> None:
        rest(one, b"")
        rest(other, b"")

    return Case([one, other], ["CLOSE", "CLOSE"], use)


def over_unread() -> Case:
    one, other = pair()
    other.sendall(blocks(100000))
    other.shutdown(socket.SHUT_WR)
    one.shutdown(socket.SHUT_WR)

    def use() -> None:
        rest(one, blocks(100000))

    return Case([one, other], ["CLOSE", "CLOSE"], use)


def reset_unread() -> Case:
    one, other = pair()
    other.sendall(blocks(30000))
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()

    def use() -> None:
        got = b""
        try:
            while piece := one.recv(1 << 20):
                got += piece
        except ConnectionResetError:
            equal((len(got), got == blocks(30000)), (30000, True))
            rest(one, b"")
        else:
            raise AssertionError("an end, and no error")

    return Case([one], ["CLOSE"], use)


def reset() -> Case:
    one, other = pair()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()

    def use() -> None:
        try:
            one.recv(99)
        except ConnectionResetError:
            rest(one, b"")
        else:
            raise AssertionError("an end, and no error")

    return Case([one], ["CLOSE"], use)


def resets_at_one_port() -> Case:
    listener = socket.create_server(("127.0.0.1", 0))
    ends = []
    for _ in range(3):
        client = socket.create_connection(listener.getsockname())
        ends.append(listener.accept()[0])
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()

    def use() -> None:
        for one in ends:
            equal(one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), errno.ECONNRESET)
        with socket.create_connection(listener.getsockname()) as client:
            equal(listener.accept()[0].getpeername(), client.getsockname())

    return Case(ends, ["CLOSE"] * 3, use, listener)


def refused() -> Case:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex(address)

    def use() -> None:
        equal(one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0, True)

    return Case([one], ["CLOSE"], use)


CASES = (
    established, other_end_gone, other_end_gone_6, other_end_gone_mapped, other_end_gone_unread, half_closed,
    end_not_delivered, both_ends_told_one_delivered, last_end_not_delivered, over, over_unread, reset,
    reset_unread, resets_at_one_port, refused,
)  # fmt: skip


def state(one: socket.socket) -> str:
    """As include/net/tcp_states.h."""
    return STATES[one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[0] - 1]


def look(one: socket.socket) -> str:
    """What it tells, without taking anything from it (SO_ERROR would)."""
    poll = select.poll()
    poll.register(one, select.POLLIN | select.POLLPRI | select.POLLOUT | select.POLLRDHUP)
    found = poll.poll(0)
    events = found[0][1] if found else 0
    try:
        peer = str(one.getpeername())
    except OSError as error:
        peer = errno.errorcode[error.errno or 0]
    return " ".join([state(one), "|".join(text for bit, text in EVENTS.items() if events & bit), peer])


def settled(cases: dict[str, Case]) -> Iterator[str]:
    """What is not yet as it shall be."""
    for name, case in cases.items():
        found = [state(one) for one in case.ends]
        if found != case.states:
            yield f"{name}: {found}"


def main() -> None:
    """Run the cases."""
    cases = {case.__name__: case() for case in CASES if case.__name__ in sys.argv[1:] or len(sys.argv) == 1}
    until = time.monotonic() + 20
    while missing := list(settled(cases)):
        if time.monotonic() > until:
            sys.exit(f"not settled: {missing}")
        time.sleep(0.05)
    before = {name: [look(one) for one in case.ends] for name, case in cases.items()}
    print("ready", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.05)
    for name, case in cases.items():
        for one in case.ends:
            # What was under way is sent again, and that later each time that it is in vain.
            one.settimeout(60)
        after = [look(one) for one in case.ends]
        try:
            equal(after, before[name])
            case.use()
            print(name, "ok", flush=True)
        except (OSError, AssertionError) as error:
            print(name, f"FAILED: {type(error).__name__}: {error}", flush=True)
    print("end", flush=True)


main()
