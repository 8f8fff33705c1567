"""Makes CRIU's images of TCP connections fit for a restore in which nothing blocks the network.

What a socket was to send and had not sent yet, CRIU sends while it restores the socket, before the other end exists
when that belongs to the same pod: the kernel answers with a reset, and the restore fails. CRIU expects firewall rules
to stop such packets, which would need nft or iptables on every node. So these bytes are declared to be sent and
not yet acknowledged: then they are put back silently, and the kernel sends them again, for the first time, when the
program runs (after its retransmission timeout).
"""

from __future__ import annotations

import struct
from pathlib import Path

# A service magic, the image's own magic, and the size of the one message; the queues' bytes follow (CRIU's image.h,
# magic.h and protobuf.c).
_HEADER = struct.Struct("<III")
_TCP_STREAM_MAGIC = 0x51465506
# TcpStreamEntry.unsq_len (CRIU's tcp-stream.proto).
_UNSENT_FIELD = 12
_MAX_VARINT = 10


class ImageError(ValueError):
    """Not an image of a TCP connection as this version of CRIU writes it."""


def silence(images: Path) -> int:
    """Change all images of TCP connections in this directory. Gives how many had something unsent.

    Raises OSError or ImageError.
    """
    return sum(_silence_one(path) for path in sorted(images.glob("tcp-stream-*.img")))


def _silence_one(path: Path) -> bool:
    with path.open("r+b") as image:
        header = image.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise ImageError(f"{path.name} is cut off")
        _, magic, size = _HEADER.unpack(header)
        message = image.read(size)
        if magic != _TCP_STREAM_MAGIC or len(message) != size:
            raise ImageError(f"{path.name} is no image of a TCP connection")
        place = _find(message, _UNSENT_FIELD, path.name)
        if place is None or not any(byte & 0x7F for byte in message[place]):
            return False
        # A zero of as many bytes as the number had: a varint may be longer than it needs to be.
        image.seek(_HEADER.size + place.start)
        image.write(b"\x80" * (place.stop - place.start - 1) + b"\x00")
        return True


def _find(message: bytes, field: int, name: str) -> slice | None:
    """Where the value of this field is.

    All fields of this message are varints (protobuf.dev/programming-guides/encoding).
    """
    offset = 0
    while offset < len(message):
        key = _varint(message, offset, name)
        value = _varint(message, key.stop, name)
        tag = sum((byte & 0x7F) << 7 * index for index, byte in enumerate(message[key]))
        if tag & 7 != 0:
            raise ImageError(f"{name} has a field of an unknown kind")
        if tag >> 3 == field:
            return value
        offset = value.stop
    return None


def _varint(message: bytes, start: int, name: str) -> slice:
    for stop in range(start, min(len(message), start + _MAX_VARINT)):
        if not message[stop] & 0x80:
            return slice(start, stop + 1)
    raise ImageError(f"{name} is cut off")
