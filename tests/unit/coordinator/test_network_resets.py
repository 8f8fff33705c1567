"""Connections are destroyed or disconnected exactly: real sockets of a process in a network namespace of its own."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Container, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.capture.inspect.sockets import Address, Endpoint
from slurmckpt.capture.inspect.tcpdiag import Diagnosed
from slurmckpt.coordinator.network import resets

# A server and connections to it, each with something to read. Commands on stdin: what reading number N gives, until
# somebody has ended or reset it, or, with `quiet`, nothing comes for a moment.
PROGRAM = r"""
import socket, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
family, address = (socket.AF_INET6, "::1") if sys.argv[1] == "6" else (socket.AF_INET, "127.0.0.1")
server = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
ends = []
for number in range(3):
    one = socket.create_connection((address, 7000))
    other, _ = server.accept()
    other.sendall(b"unread")
    while len(one.recv(6, socket.MSG_PEEK)) < 6: pass
    ends.append((one, other))
ours = [one.getsockname()[:2] for one, _ in ends]
def shown(one):
    host, port = one.getsockname()[:2]
    host = host.removeprefix("::ffff:")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
print(*(f"{shown(one)} {shown(other)}" for one, other in ends), sep="\n", flush=True)
for line in sys.stdin:
    which, number, *quiet = line.split()
    found = []
    for one in ends[int(number)]:
        if one.fileno() >= 0: one.settimeout(0.2 if quiet else 60)
    try:
        if which == "new":
            socket.create_connection((address, 7000), 60).close(); found.append("accepted")
            one = ends[int(number)][0]
            while piece := one.recv(100): found.append(piece.decode())
            found.append("end")
        if which == "close":
            # Both ends have been read, so they part in order, and the kernel keeps the first for a minute.
            for one in ends[int(number)]: one.close()
            found.append("closed")
        if which == "bind":
            # As CRIU does it: the very port, with nothing that would excuse the old connection.
            host, port = ours[int(number)]
            with socket.socket(family) as one: one.bind((host, port))
            found.append("bound")
        if found: raise LookupError
        one = ends[int(number)][which == "theirs"]
        while piece := one.recv(100): found.append(piece.decode())
        found.append("end")
    except LookupError:
        pass
    except OSError as error:
        found.append(type(error).__name__)
    print(*found, flush=True)
"""


class Pod:
    """A process in PID and network namespaces of its own, whose parent is pid 1 there."""

    def __init__(self, family: str) -> None:
        command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        program = ["sh", "-c", '"$@"; :', "sh", sys.executable, "-c", PROGRAM, family]
        self._process = subprocess.Popen([*command, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.connections = [tuple(self._process.stdout.readline().split()) for _ in range(3)]
        with open(f"/proc/{self._process.pid}/task/{self._process.pid}/children", encoding="ascii") as children:
            self.init = int(children.read())

    def ask(self, which: str, number: int = 0, quiet: bool = False) -> str:
        """What the program gets when it reads this end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{which} {number}{' quiet' if quiet else ''}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture(params=["4", "6"])
def pod(request: pytest.FixtureRequest) -> Iterator[Pod]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    pod = Pod(request.param)
    yield pod
    pod.end()


def pair(pod: Pod, number: int) -> tuple[str, str]:
    local, remote = pod.connections[number]
    return local, remote


def test_only_what_is_named_is_reset(pod: Pod) -> None:
    """What had been received can still be read. The server's end of it is reset by the packet that goes out."""
    assert resets.reset(pod.init, [pair(pod, 1)]) == 1
    assert pod.ask("ours", 1) == "unread ConnectionAbortedError"
    assert pod.ask("theirs", 1) == "ConnectionResetError"
    assert pod.ask("ours", 0, quiet=True) == "unread TimeoutError"
    assert pod.ask("theirs", 2, quiet=True) == "TimeoutError"


def test_the_listening_socket_survives_when_the_connection_is_gone(pod: Pod) -> None:
    """The kernel's look-up by address alone would find it."""
    local, remote = pair(pod, 1)
    assert resets.reset(pod.init, [(remote, local)]) == 1
    assert resets.reset(pod.init, [(remote, local), (remote, "192.0.2.1:1")]) == 0
    assert pod.ask("new", 1, quiet=True).startswith("accepted")


def test_a_connection_that_ends_between_look_and_reset(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale cookie is no error, and hits nothing else."""
    local, remote = pair(pod, 0)
    look = resets._connections

    def twice(wanted: Container[tuple[Endpoint, Endpoint]]) -> list[Diagnosed]:
        found = look(wanted)
        resets._destroy(found)
        return found

    monkeypatch.setattr(resets, "_connections", twice)
    assert resets.reset(pod.init, [(remote, local)]) == 1
    assert pod.ask("new", 2, quiet=True).startswith("accepted")


def test_a_kernel_that_cannot_destroy(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is disconnected, found by its descriptor."""

    def refused(connections: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(resets, "_destroy", refused)
    assert resets.reset(pod.init, [pair(pod, 1)]) == 1
    assert pod.ask("ours", 1) == "ConnectionResetError"
    assert pod.ask("theirs", 1) == "ConnectionResetError"
    assert pod.ask("ours", 2, quiet=True) == "unread TimeoutError"


def test_what_the_kernel_keeps_of_a_closed_connection_is_removed(pod: Pod) -> None:
    """Otherwise its port could not be bound again for a minute."""
    for number in (0, 1):
        assert pod.ask("ours", number, quiet=True).startswith("unread")
        assert pod.ask("theirs", number, quiet=True) == "TimeoutError"
        assert pod.ask("close", number) == "closed"
        assert pod.ask("bind", number) == "OSError"
    local, remote = pair(pod, 0)
    assert resets.remove(pod.init, [(local, remote), (remote, local)]) == 0
    assert pod.ask("bind", 0) == "bound"
    # Only what was named.
    assert pod.ask("bind", 1) == "OSError"
    assert pod.ask("ours", 2, quiet=True) == "unread TimeoutError"
    assert resets.remove(pod.init, [(local, remote)]) == 0


def test_a_kernel_that_keeps_it(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(connections: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(resets, "_destroy", refused)
    assert pod.ask("ours", 0, quiet=True).startswith("unread")
    assert pod.ask("theirs", 0, quiet=True) == "TimeoutError"
    assert pod.ask("close", 0) == "closed"
    assert resets.remove(pod.init, [pair(pod, 0)]) == 1


def test_nothing_to_reset() -> None:
    assert resets.reset(1, []) == 0
    assert resets.remove(1, []) == 0


@given(st.ip_addresses(), st.integers(1, 65535))
def test_endpoints_are_read_as_they_are_written(address: Address, port: int) -> None:
    end = Endpoint(address, port)
    assert resets.endpoint(str(end)) == end


@pytest.mark.parametrize(
    "text", ["", "1.2.3.4", "1.2.3.4:", "1.2.3.4:0", "1.2.3.4:65536", "1.2.3.4:+1", "::1:80", "[1.2.3.4]:80", "host:80"]
)
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(ValueError):
        resets.endpoint(text)
