"""Sockets of ranks: between them, to outside, and of kinds that CRIU does not know."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.capture.looking import PYTHON, MakePod, look, one_refusal

pytestmark = pytest.mark.root


ME = f"process {os.getpid()} ({Path('/proc/self/comm').read_text().strip()})"


UID = 47112
# The report is still written as root: what counts is whose process it is.
AS_USER = f"os.setresuid({UID}, 0, 0)\nready()"
CLOSE = "close the connection before a checkpoint, or do not use the service behind it"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A unix stream service outside the pod."""
    with socket.socket(socket.AF_UNIX) as server:
        path = str(tmp_path / "service.sock")
        server.bind(path)
        server.listen()
        yield server, path


def test_a_unix_connection_to_outside(make_pod: MakePod, service: tuple[socket.socket, str]) -> None:
    server, path = service
    pod = make_pod(f"s = socket.socket(socket.AF_UNIX)\ns.connect({path!r})\nready()")
    pending = (
        f"process 2 {PYTHON} is connected by a unix socket to a process that has not accepted it yet, outside the pod,"
        f" which cannot be captured: {CLOSE}"
    )
    assert one_refusal(pod) == pending
    accepted, _ = server.accept()
    with accepted:
        assert one_refusal(pod) == (
            f"process 2 {PYTHON} is connected by a unix socket ({path}) to {ME} outside the pod,"
            f" which cannot be captured: {CLOSE}"
        )
    # Closed at the other end: nobody is there any more.
    assert look(pod).refusals == []


def test_a_unix_connection_with_another_process_of_the_user(make_pod: MakePod) -> None:
    """As with one of another step: both are named, and that they might be in one."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        command = ["/bin/sleep", "1000"]
        other = subprocess.Popen(command, pass_fds=[mine.fileno()], user=UID, extra_groups=[])
        try:
            mine.close()
            pod = make_pod(AS_USER, pass_fds=(theirs.fileno(),))
            theirs.close()
            sentence = one_refusal(pod)
        finally:
            other.kill()
            other.wait()
    assert sentence == (
        f"process 2 {PYTHON} is connected by a unix socket to process {other.pid} (sleep) outside the pod, which cannot"
        " be captured: start both programs in one step, if both are the job's, or close the connection before a"
        " checkpoint"
    )


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM", "SOCK_SEQPACKET"])
def test_one_end_of_a_socketpair_outside(make_pod: MakePod, kind: str) -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, getattr(socket, kind))
    with mine, theirs:
        pod = make_pod("ready()", pass_fds=(theirs.fileno(),))
        theirs.close()
        assert one_refusal(pod) == (
            f"process 2 {PYTHON} is connected by a unix socket to {ME} outside the pod,"
            f" which cannot be captured: {CLOSE}"
        )


def test_a_datagram_socket_that_sends_to_a_service(make_pod: MakePod, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as logger:
        path = str(tmp_path / "log")
        logger.bind(path)
        pod = make_pod(f"s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\ns.connect({path!r})\nready()")
        assert f"is connected by a unix socket ({path}) to {ME} outside the pod" in one_refusal(pod)


def test_unix_sockets_between_processes_of_the_pod(make_pod: MakePod, tmp_path: Path) -> None:
    pod = make_pod(
        f"""
a, b = socket.socketpair()
server = socket.socket(socket.AF_UNIX)
server.bind({str(tmp_path / "inside")!r})
server.listen()
waiting = socket.socket(socket.AF_UNIX)
waiting.connect({str(tmp_path / "inside")!r})  # not accepted, but the listener is in the pod
if os.fork() == 0:
    a.close()
    signal.pause()
b.close()
ready()
"""
    )
    assert look(pod).refusals == []


def test_a_tcp_connection_to_outside_is_reported_not_refused(make_pod: MakePod) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        pod = make_pod(f"s = socket.create_connection(('127.0.0.1', {port}))\nready(s.getsockname()[1])")
        accepted, _ = server.accept()
        with accepted:
            found = look(pod)
            assert found.refusals == []
            (connection,) = found.outside
            assert found.inside == []
            assert (connection.local, connection.remote) == (f"127.0.0.1:{pod.report}", f"127.0.0.1:{port}")
            assert (connection.pid, f"({connection.comm})", connection.state) == (pod.leader, PYTHON, 1)
            descriptor = os.readlink(f"/proc/{pod.leader}/fd/" + find_socket(pod.leader))
            assert descriptor == f"socket:[{connection.inode}]"


def find_socket(pid: int) -> str:
    return next(n for n in os.listdir(f"/proc/{pid}/fd") if os.readlink(f"/proc/{pid}/fd/{n}").startswith("socket:"))


@pytest.mark.parametrize("size", [1000, 4_000_000])
def test_what_was_sent_before_the_end_and_has_not_arrived(make_pod: MakePod, size: int) -> None:
    """What fits into the buffer of the reader is in the image, with the end; the rest is in nobody's."""
    pod = make_pod(
        f"""
listening = socket.create_server(("127.0.0.1", 0))
reader = socket.socket()
reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
reader.connect(listening.getsockname())
writer, _ = listening.accept()
writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_000_000)
writer.setblocking(False)
writer.send(bytes({size}))
writer.close()
ready(listening.getsockname()[1])
"""
    )
    found = look(pod)
    sentence = (
        f"process 2 {PYTHON} has not read what came before the end of its TCP connection with port {pod.report}, and a"
        " part of that is only in the kernel, which cannot be captured: the next checkpoint will do when it has been"
        " read"
    )
    assert found.refusals == [] and found.outside == []
    assert found.passing == found.moments == ([sentence] if size > 100_000 else [])


def test_a_connection_that_is_not_taken_up_before_something_is_sent(make_pod: MakePod) -> None:
    """The kernel has a request of it, and no socket: the client's data would be answered with a reset."""
    pod = make_pod(
        """
listening = socket.create_server(("127.0.0.1", 0))
listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 60)
client = socket.create_connection(listening.getsockname())
ready(listening.getsockname()[1])
"""
    )
    found = look(pod)
    assert found.refusals == [] and found.outside == []
    for said in (found.passing, found.moments):
        assert len(said) == 1
        assert f"has a TCP connection with port {pod.report} that is not taken up before something is sent" in said[0]


def test_connections_that_wait_to_be_accepted_are_for_another_moment(make_pod: MakePod, tmp_path: Path) -> None:
    own = tmp_path / "mine"
    own.mkdir()
    os.chown(own, 1000, 1000)
    pod = make_pod(
        f"""
listeners = [socket.create_server(("127.0.0.1", 0)), socket.create_server(("::1", 0), family=socket.AF_INET6)]
clients = [socket.create_connection(one.getsockname()[:2]) for one in listeners * 2]
unix = socket.socket(socket.AF_UNIX)
unix.bind({str(own / "s")!r})
unix.listen()
other = socket.socket(socket.AF_UNIX)
other.connect({str(own / "s")!r})
ready(" ".join(str(one.getsockname()[1]) for one in listeners))
"""
    )
    found = look(pod)
    assert found.refusals == []
    ports = pod.report.split()
    assert sorted(found.passing) == sorted(
        f"process 2 {PYTHON} has {what} that it has not accepted yet: the next checkpoint will do, unless it never"
        " accepts them"
        for what in (
            *(f"2 connections at its port {port}" for port in ports),
            f"1 connection at its unix socket {own}/s",
        )
    )


def test_a_tcp_connection_that_waits_for_a_listener_outside_is_reported(make_pod: MakePod) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        pod = make_pod(f"s = socket.create_connection({server.getsockname()!r})\nready()")
        assert [c.remote for c in look(pod).outside] == [f"127.0.0.1:{server.getsockname()[1]}"]


def test_addresses_of_a_pod_with_a_network_of_its_own(make_pod: MakePod) -> None:
    pod = make_pod(
        """
import subprocess
for command in ("link set lo up", "addr add 10.9.8.7/32 dev lo", "addr add fd00::7/128 dev lo nodad"):
    subprocess.run(["ip", *command.split()], check=True)
server = socket.create_server(("10.9.8.7", 0))
client = socket.create_connection(server.getsockname())
accepted = server.accept()
datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
datagrams.bind(("fd00::7", 0))
local = socket.create_server(("127.0.0.1", 0))
everywhere = socket.create_server(("", 0))
a, b = socket.socketpair()
ready()
""",
        options=["--net"],
    )
    found = look(pod)
    assert found.refusals == []
    assert found.outside == []
    assert found.addresses == ["10.9.8.7", "fd00::7"]


def test_a_unix_socket_from_another_network_namespace(make_pod: MakePod) -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        pod = make_pod("ready()", pass_fds=(theirs.fileno(),), options=["--net"])
        assert one_refusal(pod) == (
            f"process 2 {PYTHON} is connected by a unix socket that was made in another network namespace:"
            " close it before a checkpoint"
        )


OTHER_SOCKETS = [
    # Without a protocol it receives nothing: programs use it to ask for interfaces.
    ("socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)", ""),
    (
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))",
        "captures packets of the network, which cannot be captured: stop the network capture first",
    ),
    (
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)",
        "has a multipath TCP socket open, which cannot be captured: for a Go program set GODEBUG=multipathtcp=0",
    ),
    (
        "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
        "has a socket of the family AF_ALG open, which cannot be captured: close it before a checkpoint",
    ),
    (
        "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
        "has a socket of the family AF_VSOCK open, which cannot be captured: close it before a checkpoint",
    ),
    ("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", ""),
]


@pytest.mark.parametrize(("make", "sentence"), OTHER_SOCKETS)
def test_other_sockets(make_pod: MakePod, make: str, sentence: str) -> None:
    pod = make_pod(
        f"""
try:
    s = {make}
except OSError as error:
    ready(error.strerror)
ready()
"""
    )
    if pod.report != "ready":
        pytest.skip(f"this kernel has no such socket: {pod.report}")
    assert look(pod).refusals == ([f"process 2 {PYTHON} {sentence}"] if sentence else [])


def test_a_connected_netlink_socket(make_pod: MakePod) -> None:
    pod = make_pod(
        """
other = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 2)
other.bind((0, 0))
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 2)
s.connect((other.getsockname()[0], 0))
ready(other.getsockname()[0])
"""
    )
    assert one_refusal(pod) == (
        f"process 2 {PYTHON} has a netlink socket that is connected to port {pod.report}, which cannot be captured:"
        " close it before a checkpoint"
    )
