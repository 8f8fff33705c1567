"""CRIU's images of TCP connections: what they say, and how they fit a restore in which nothing blocks the network.

What a socket was to send and had not sent yet, CRIU sends while it restores the socket, before the other end exists
when that belongs to the same pod. It expects firewall rules to stop such packets, which would need nft or iptables on
every node. So as much of it as the other end had room for (its window) is declared to be sent and not yet acknowledged:
then it is put back silently, and the kernel sends it again, for the first time, when the program runs (after its
retransmission timeout). What there was no room for stays unsent. It goes nowhere before the other end says that there
is room, and then at once: declared as sent it would wait for that timeout, which doubles whenever it was in vain.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

# A service magic, the image's own magic, and the size of the one message; the queues' bytes follow (CRIU's image.h,
# magic.h and protobuf.c).
_HEADER = struct.Struct("<III")
_TCP_STREAM_MAGIC = 0x51465506
# TcpStreamEntry (CRIU's tcp-stream.proto): inq_seq, outq_len, outq_seq, unsq_len, and snd_wnd, which is not there on
# Linux before 4.8.
_RECEIVED, _QUEUED, _WRITTEN, _UNSENT, _WINDOW = 2, 3, 4, 12, 14
_MAX_VARINT = 10


@dataclass(frozen=True)
class Stream:
    """How far a connection had come at one of its ends.

    received, written: the sequence number after the last byte that had come, and after the last that the process had
    sent; an end of stream counts as one. queued: how many bytes before `written` the other side had not acknowledged,
    without an end of stream.
    """

    received: int
    written: int
    queued: int


class ImageError(ValueError):
    """Not an image of a TCP connection as this version of CRIU writes it."""


def silence(images: Path) -> int:
    """Change all images of TCP connections in this directory. Gives how many had something that could be sent.

    Raises OSError or ImageError.
    """
    return sum(_silence_one(path) for path in sorted(images.glob("tcp-stream-*.img")))


def read(images: Path, inode: int) -> Stream:
    """The image of the socket with this inode. Raises OSError or ImageError."""
    path = images / f"tcp-stream-{inode:x}.img"
    with path.open("rb") as image:
        message = _message(image, path.name)
    fields = _fields(message, path.name)
    if missing := {_RECEIVED, _WRITTEN, _QUEUED} - fields.keys():
        raise ImageError(f"{path.name} lacks its field {min(missing)}")
    return Stream(*(_value(message[fields[one]]) for one in (_RECEIVED, _WRITTEN, _QUEUED)))


def _message(image: BinaryIO, name: str) -> bytes:
    header = image.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise ImageError(f"{name} is cut off")
    _, magic, size = _HEADER.unpack(header)
    message = image.read(size)
    if magic != _TCP_STREAM_MAGIC or len(message) != size:
        raise ImageError(f"{name} is no image of a TCP connection")
    return message


def _silence_one(path: Path) -> bool:
    with path.open("r+b") as image:
        message = _message(image, path.name)
        fields = _fields(message, path.name)
        place = fields.get(_UNSENT)
        if place is None or not (unsent := _value(message[place])):
            return False
        room = unsent
        if _WINDOW in fields and _QUEUED in fields:
            sent = _value(message[fields[_QUEUED]]) - unsent
            room = max(0, _value(message[fields[_WINDOW]]) - sent)
        left = max(0, unsent - room)
        if left == unsent:
            return False
        image.seek(_HEADER.size + place.start)
        image.write(_varint_of(left, place.stop - place.start))
        return True


def _fields(message: bytes, name: str) -> dict[int, slice]:
    """Where the value of each field is.

    All fields of this message are varints (protobuf.dev/programming-guides/encoding).
    """
    found: dict[int, slice] = {}
    offset = 0
    while offset < len(message):
        key = _varint(message, offset, name)
        value = _varint(message, key.stop, name)
        tag = _value(message[key])
        if tag & 7 != 0:
            raise ImageError(f"{name} has a field of an unknown kind")
        found[tag >> 3] = value
        offset = value.stop
    return found


def _value(varint: bytes) -> int:
    return sum((byte & 0x7F) << 7 * index for index, byte in enumerate(varint))


def _varint_of(value: int, size: int) -> bytes:
    """In so many bytes: a varint may be longer than it needs to be."""
    return bytes(value >> 7 * index & 0x7F | (0x80 if index < size - 1 else 0) for index in range(size))


def _varint(message: bytes, start: int, name: str) -> slice:
    for stop in range(start, min(len(message), start + _MAX_VARINT)):
        if not message[stop] & 0x80:
            return slice(start, stop + 1)
    raise ImageError(f"{name} is cut off")
