"""UDP datagrams that wait at a socket are found without being taken, and wait again after a restore."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from slurmckpt.capture import datagrams
from slurmckpt.capture.processes import Process
from tests.unit.capture.looking import MakePod, look

pytestmark = pytest.mark.root

ME = cast(Process, SimpleNamespace(pid=os.getpid(), ns_pid=1))
# Odd lengths, nothing at all, the longest that IPv6 has in one piece on loopback, a sum of ones only, and two alike.
CONTENTS = [b"one", b"", b"\xff\xff", bytes(65488), b"x" * 4001, b"same", b"same"]


@pytest.fixture(autouse=True)
def pod(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(datagrams, "pod_processes", lambda init_pid: [ME])
    yield


def udp(address: str = "", family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    one = socket.socket(family, socket.SOCK_DGRAM)
    one.settimeout(5)
    one.bind((address, 0))
    return one


def all_of(one: socket.socket, count: int) -> list[tuple[bytes, object]]:
    found = [one.recvfrom(1 << 16) for _ in range(count)]
    one.setblocking(False)
    with pytest.raises(BlockingIOError):
        one.recv(1)
    return found


def through(one: socket.socket, directory: Path) -> list[tuple[bytes, object]]:
    """Noted, read by its program, which must find all, and sent again."""
    datagrams.save([ME], [f"1/{one.fileno()}"], directory)
    first = all_of(one, len(CONTENTS))
    room = one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    one.settimeout(5)
    datagrams.apply(os.getpid(), directory)
    again = all_of(one, len(CONTENTS))
    assert one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == room
    assert again == first
    return first


@pytest.mark.parametrize("bound", ["127.0.0.1", "", "::1", "::"])
@pytest.mark.parametrize("connected", [False, True])
def test_they_wait_again_with_their_sources(tmp_path: Path, bound: str, connected: bool) -> None:
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    with udp(bound, family) as one, udp("::1" if ":" in bound else "127.0.0.1", family) as other:
        one.setsockopt(socket.SOL_SOCKET, 33, 1 << 22)
        if connected:
            one.connect(("::1" if ":" in bound else "127.0.0.1", other.getsockname()[1]))
        for text in CONTENTS:
            other.sendto(text, ("::1" if ":" in bound else "127.0.0.1", one.getsockname()[1]))
        found = through(one, tmp_path)
        assert [text for text, _ in found] == CONTENTS
        assert {source[1] for _, source in found} == {other.getsockname()[1]}  # type: ignore[index]


def test_ipv4_at_a_socket_of_both_families(tmp_path: Path) -> None:
    with udp("::", socket.AF_INET6) as one, udp("127.0.0.1") as other:
        one.setsockopt(socket.SOL_SOCKET, 33, 1 << 22)
        for text in CONTENTS:
            other.sendto(text, ("127.0.0.1", one.getsockname()[1]))
        assert through(one, tmp_path)[0][1] == ("::ffff:127.0.0.1", other.getsockname()[1], 0, 0)


def test_a_source_elsewhere(tmp_path: Path) -> None:
    """Nobody has that address here."""
    with udp("127.0.0.1") as one:
        (tmp_path / datagrams.FILE).write_text(f'{{"1/{one.fileno()}": [["aGVsbG8=", "198.51.100.7", 53]]}}')
        datagrams.apply(os.getpid(), tmp_path)
        assert all_of(one, 1) == [(b"hello", ("198.51.100.7", 53))]


def test_what_cannot_be_sent_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with udp("127.0.0.1") as one:
        notes = '["eA==", "fe80::1%lo", 5], ["eA==", "2001:db8::1", 5], ["eQ==", "127.0.0.1", 5]'
        (tmp_path / datagrams.FILE).write_text(f'{{"1/{one.fileno()}": [{notes}], "1/999": [], "7/3": []}}')
        datagrams.apply(os.getpid(), tmp_path)
        assert all_of(one, 1) == [(b"y", ("127.0.0.1", 5))]
        assert caplog.messages == [f"2 of 3 datagrams that waited at the socket 1/{one.fileno()} are lost"]


def test_a_program_that_peeks_by_place_goes_on_there(tmp_path: Path) -> None:
    with udp("127.0.0.1") as one, udp() as other:
        other.sendto(b"abc", one.getsockname())
        one.setsockopt(socket.SOL_SOCKET, 42, 1)
        datagrams.save([ME], [f"1/{one.fileno()}"], tmp_path)
        assert one.getsockopt(socket.SOL_SOCKET, 42) == 1
        assert one.recv(9, socket.MSG_PEEK) == b"bc"


def test_nothing_waits(tmp_path: Path) -> None:
    with udp() as one, socket.socket() as stream:
        datagrams.save([ME], [f"1/{one.fileno()}", f"1/{stream.fileno()}"], tmp_path)
    assert not list(tmp_path.iterdir())
    datagrams.apply(os.getpid(), tmp_path)


def test_only_sockets_at_which_something_waits_are_looked_at(make_pod: MakePod) -> None:
    found = look(
        make_pod(
            "idle, one = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))\n"
            "idle.bind(('127.0.0.1', 0)); one.bind(('127.0.0.1', 0))\n"
            "idle.sendto(b'', one.getsockname()); os.dup2(one.fileno(), 99); one.close()\n"
            "ready()"
        )
    )
    assert (found.datagram_sockets, found.refusals) == (["2/99"], [])
