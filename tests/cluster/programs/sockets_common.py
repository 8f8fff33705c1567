"""What the cases of sockets.py have in common: data that no shift leaves equal, connections, and comparisons."""

import os
import socket
from collections.abc import Iterator

Case = Iterator[None]
BIG = os.urandom(1 << 16) * 256


def text(count: int) -> bytes:
    """`count` bytes that no shift leaves equal."""
    return b"".join(b"%d," % number for number in range(count))[:count]


def drain(one: socket.socket, count: int) -> bytes:
    """Exactly so many bytes, or what there is before the end."""
    data = b""
    while len(data) < count and (piece := one.recv(count - len(data))):
        data += piece
    return data


def fill(one: socket.socket) -> int:
    """Write until nothing more fits; how many bytes."""
    one.setblocking(False)
    sent = 0
    try:
        while True:
            sent += one.send(BIG[sent % len(BIG) :])
    except BlockingIOError:
        one.setblocking(True)
        return sent


def connected(
    family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM, address: object = None
) -> list[socket.socket]:
    """Listener, client and server end."""
    listener = socket.socket(family, kind)
    if address is None:
        address = ("::1" if family == socket.AF_INET6 else "127.0.0.1", 0)
    listener.bind(address)  # type: ignore[arg-type]
    listener.listen(3000)
    client = socket.socket(family, kind)
    client.connect(listener.getsockname())
    return [listener, client, listener.accept()[0]]


def equal(got: object, wanted: object) -> None:
    """Fail with both values."""
    if got != wanted:
        raise AssertionError(f"{str(got)[:200]!r} instead of {str(wanted)[:200]!r}")


def answers(listener: socket.socket) -> None:
    """A new connection is accepted and carries data both ways."""
    with socket.socket(listener.family, listener.type) as client:
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        with server:
            client.send(b"question")
            equal(server.recv(100), b"question")
            server.send(b"answer")
            equal(client.recv(100), b"answer")
