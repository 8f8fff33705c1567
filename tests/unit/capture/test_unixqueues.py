"""Messages at unix sockets that CRIU would lose, or of which it would lose the sender, are found; others are not."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from slurmckpt.capture import unixqueues
from slurmckpt.capture.processes import read_process
from tests.unit.capture.looking import MakePod, look

pytestmark = pytest.mark.root

NOTHING = "a message of no bytes at its unix socket"
NAMED = "a message at its unix socket whose sender has a name"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def lost(one: socket.socket, seen: set[int] | None = None) -> str:
    me = read_process(os.getpid())
    assert me is not None
    keys = [f"{me.ns_pid}/{one.fileno()}", f"{me.ns_pid}/999"]
    text = unixqueues.lost([me], keys, set() if seen is None else seen)
    if not text:
        return ""
    before = f"{me} has not read "
    after = ", which cannot be captured: the next checkpoint will do when it has been read"
    assert text.startswith(before) and text.endswith(after), text
    return text[len(before) : -len(after)]


def pair(stack: ExitStack, kind: int) -> tuple[socket.socket, socket.socket]:
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    return stack.enter_context(one), stack.enter_context(other)


def named(stack: ExitStack, name: str) -> socket.socket:
    one = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    one.bind(f"\0{name}-{os.getpid()}")
    return one


@pytest.mark.parametrize("kind", unixqueues.KINDS)
def test_messages_of_a_pair(stack: ExitStack, kind: int) -> None:
    one, other = pair(stack, kind)
    assert lost(one) == ""
    messages = [b"a", bytes(100000), b"", b"b"]
    for message in messages[:2]:
        other.send(message)
    assert lost(one) == ""
    for message in messages[2:]:
        other.send(message)
    seen = set[int]()
    # Also when the kernel does not show it any more, and with what was sent since then.
    assert [lost(one, seen) for _ in range(3)] == [NOTHING] * 3
    assert one.getsockopt(socket.SOL_SOCKET, 42) == -1
    assert [one.recv(1 << 20) for _ in messages] == messages
    assert (lost(one, seen), seen) == ("", set())
    other.send(b"more")
    assert lost(one, seen) == ""


@pytest.mark.parametrize("kind", unixqueues.KINDS)
@pytest.mark.parametrize("closed", [False, True])
def test_the_end_is_no_message(stack: ExitStack, kind: int, closed: bool) -> None:
    one, other = pair(stack, kind)
    other.send(b"last")
    if closed:
        other.close()
    else:
        other.shutdown(socket.SHUT_RDWR)
    assert lost(one) == ""
    assert one.recv(9) == b"last"


@pytest.mark.parametrize("kind", unixqueues.KINDS)
@pytest.mark.parametrize("listens", [False, True])
def test_sockets_at_which_nothing_can_wait(stack: ExitStack, kind: int, listens: bool) -> None:
    one = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
    if listens and kind == socket.SOCK_SEQPACKET:
        one.bind(f"\0listens-{os.getpid()}")
        one.listen()
    assert lost(one) == ""


def test_who_has_sent_it(stack: ExitStack) -> None:
    server, client = named(stack, "server"), named(stack, "client")
    nobody = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    nobody.sendto(b"1", server.getsockname())
    assert lost(server) == ""
    client.sendto(b"2", server.getsockname())
    assert lost(server) == NAMED
    assert [server.recvfrom(9) for _ in range(2)] == [(b"1", None), (b"2", client.getsockname())]
    # Only one can send here.
    server.connect(client.getsockname())
    client.sendto(b"3", server.getsockname())
    assert lost(server) == ""


def test_a_place_to_peek_from_is_kept(stack: ExitStack) -> None:
    one, other = pair(stack, socket.SOCK_DGRAM)
    other.send(b"abc")
    one.setsockopt(socket.SOL_SOCKET, 42, 2)
    assert lost(one) == ""
    assert one.recv(9, socket.MSG_PEEK) == b"c"


def test_which_sockets_are_looked_at(make_pod: MakePod) -> None:
    found = look(
        make_pod(
            "for place, kind in enumerate((socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)):\n"
            "    a, b = socket.socketpair(socket.AF_UNIX, kind)\n"
            "    os.dup2(a.fileno(), 50 + place); os.dup2(b.fileno(), 60 + place); a.close(); b.close()\n"
            "ready()"
        )
    )
    assert sorted(found.message_sockets) == ["2/51", "2/52", "2/61", "2/62"]
