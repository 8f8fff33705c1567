"""Packets between plugin, task shim, pod init and coordinator (docs/architecture.md, "The wire")."""

from __future__ import annotations

import array
import asyncio
import os
import re
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slurmckpt.errors import SlurmckptError

MAX_PACKET = 64 * 1024
MAX_DESCRIPTORS = 253  # SCM_MAX_FD of Linux
_NUMBER = re.compile(r"-?[0-9]{1,20}", re.ASCII)


class WireError(SlurmckptError):
    """A packet that is not what the contract says."""


@dataclass
class Message:
    """One packet: verb, its key=value pairs in order, and the descriptors that came with it (owned by the receiver)."""

    verb: str
    pairs: list[tuple[str, str]]
    descriptors: list[int] = field(default_factory=list)

    def text(self, key: str) -> str:
        """The first value of a key; WireError when it is absent."""
        for name, value in self.pairs:
            if name == key:
                return value
        raise WireError(f"{self.verb} without {key}=")

    def number(self, key: str) -> int:
        """The value of a key as a decimal number."""
        value = self.text(key)
        if not _NUMBER.fullmatch(value):
            raise WireError(f"{self.verb} with {key}={value[:40]!r}; a number is needed")
        return int(value)

    def close(self) -> None:
        """Close the descriptors that nobody took."""
        while self.descriptors:
            os.close(self.descriptors.pop())


def pack(verb: str, pairs: Iterable[tuple[str, object]] = ()) -> bytes:
    """A packet's bytes. Values must not contain NUL."""
    words = [verb, *(f"{key}={value}" for key, value in pairs)]
    if any("\0" in word for word in words):
        raise WireError(f"{verb} with a NUL byte in a value")
    return b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)


def parse(data: bytes) -> Message:
    """The message of a packet; WireError when it has none."""
    if not data.endswith(b"\0"):
        raise WireError("a packet that does not end with a NUL byte")
    verb, *words = (word.decode("utf-8", "surrogateescape") for word in data[:-1].split(b"\0"))
    if not (verb.isascii() and verb.isalpha() and verb.isupper()):
        raise WireError(f"a packet without a verb: {verb[:40]!r}")
    pairs = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise WireError(f"{verb} with {word[:40]!r}, which is not key=value")
        pairs.append((key, value))
    return Message(verb, pairs)


class Channel:
    """One end of a SOCK_SEQPACKET connection in the event loop. Owns the socket. One reader, any number of senders."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._sending = asyncio.Lock()
        self._waits: dict[bool, asyncio.Future[None]] = {}

    @property
    def descriptor(self) -> int:
        """The socket's number, for handing the connection on."""
        return self._socket.fileno()

    def peer(self) -> tuple[int, int]:
        """(pid, uid) of the process that connected, as the kernel saw it then."""
        pid, uid, _ = struct.unpack("3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid, uid

    async def receive(self) -> Message | None:
        """The next message, or None at the end of the connection. Raises WireError for a malformed packet."""
        size = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
        try:
            while True:
                try:
                    data, ancillary, flags, _ = self._socket.recvmsg(MAX_PACKET, size, socket.MSG_CMSG_CLOEXEC)
                    break
                except (BlockingIOError, InterruptedError):
                    await self._ready(write=False)
                except ConnectionResetError:
                    # The peer left without reading all: it is told once, then what the peer had sent can still be read.
                    continue
        except OSError:
            return None
        descriptors = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        if not data and not descriptors:
            return None
        message = Message("", [], list(descriptors))
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise WireError("a packet that is too long, or with more descriptors than this process may have")
            parsed = parse(data)
        except WireError:
            message.close()
            raise
        message.verb, message.pairs = parsed.verb, parsed.pairs
        return message

    async def send(self, verb: str, pairs: Iterable[tuple[str, object]] = (), descriptors: Sequence[int] = ()) -> None:
        """Send one message; ConnectionError when the peer is gone."""
        data = pack(verb, pairs)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        # The event loop knows one waiter for a descriptor and direction: a second one would take the first one's place.
        async with self._sending:
            while True:
                try:
                    self._socket.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
                    return
                except (BlockingIOError, InterruptedError):
                    await self._ready(write=True)
                except ConnectionError:
                    raise
                except OSError as error:
                    raise ConnectionError(error.strerror) from error

    def ended(self) -> bool:
        """Whether the peer is gone, or we are. What it has sent before that does not matter."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close our end. Who waits to read gets the end of the connection, who waits to send a ConnectionError."""
        # The loop must forget the descriptor before its number can belong to something else.
        for write, ready in list(self._waits.items()):
            self._forget(write, ready.get_loop())
            if not ready.done():
                ready.set_exception(ConnectionError("closed"))
        self._socket.close()

    async def _ready(self, write: bool) -> None:
        loop = asyncio.get_running_loop()
        descriptor = self._socket.fileno()
        if descriptor < 0:
            raise ConnectionError("closed")
        ready: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        self._waits[write] = ready
        (loop.add_writer if write else loop.add_reader)(descriptor, wake)
        try:
            await ready
        finally:
            if self._waits.get(write) is ready:
                self._forget(write, loop)

    def _forget(self, write: bool, loop: asyncio.AbstractEventLoop) -> None:
        del self._waits[write]
        (loop.remove_writer if write else loop.remove_reader)(self._socket.fileno())
