"""Unix sockets in CRIU's image that have a name in a directory which their user may change.

CRIU, as root, would remove what lies at the name, bind the socket there and give the name to its owner. By the time of
a restore the user may have put a link in the place of a directory. Where that cannot be ruled out (socketdirs.py),
these names are taken out of the image, and what listens there is made anew with the user's rights and inherited by
CRIU. A connection that was accepted has its
listener's name; CRIU does not bind it again, but would remove what lies there.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slurmckpt.capture import criu_files_pb2 as images
from slurmckpt.capture.fileimages import ImageError, entries, rewrite
from slurmckpt.capture.inspect.sockets import CLOSED, ESTABLISHED, LISTEN

# The image as it was.
_NAMED = "files.named"
_CONNECTING = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)


class Waiting(ImageError):
    """A connection waits to be accepted at such a socket: it cannot be made anew with it."""


@dataclass(frozen=True)
class Listener:
    """A socket to be made. inode: of the one in the image. directory: where a relative name begins, else empty.

    mode: its permissions. backlog: of listen(2), None when it does not listen yet. deleted: its name had been removed.
    sndbuf, rcvbuf: bytes, as getsockopt(2) gives them.
    """

    inode: int
    type: int
    name: str
    directory: str
    mode: int
    backlog: int | None
    deleted: bool
    nonblocking: bool
    sndbuf: int
    rcvbuf: int
    passes_credentials: bool

    @property
    def key(self) -> str:
        """Under which CRIU asks for an inherited one."""
        return f"socket:[{self.inode}]"


def find(directory: Path, exposed: Callable[[str], bool]) -> list[Listener]:
    """Those in the images of `directory` whose own directory is exposed: its user may change the way there.

    Raises Waiting, and ImageError for what cannot be made anew, or an image that is none; OSError.
    """
    sockets = [entry.usk for entry in entries(directory) if entry.HasField("usk")]
    peers = {one.peer for one in sockets}
    found = [_listener(one) for one in sockets if one.state != ESTABLISHED and _is_named(one, exposed)]
    for one in found:
        if one.inode in peers:
            raise Waiting(f"a connection waits to be accepted at the unix socket {one.name}")
    return found


def take(directory: Path, exposed: Callable[[str], bool]) -> list[Listener]:
    """find(), and take their names out of the images. May be called again. Raises what find() does."""
    image, named = directory / "files.img", directory / _NAMED
    if named.exists():
        shutil.copyfile(named, image)
    found = find(directory, exposed)

    def strip(entry: images.file_entry) -> bool:
        if not entry.HasField("usk") or not _is_named(entry.usk, exposed):
            return False
        entry.usk.name = b""
        entry.usk.ClearField("file_perms")
        entry.usk.ClearField("name_dir")
        entry.usk.ClearField("deleted")
        return True

    if not named.exists():
        shutil.copyfile(image, named)
    rewrite(directory, strip)
    return found


def _is_named(one: images.unix_sk_entry, exposed: Callable[[str], bool]) -> bool:
    """Whether it has such a name: not none, and not an abstract one."""
    if not one.name or one.name.startswith(b"\0"):
        return False
    return exposed(os.path.dirname(os.path.join(os.fsdecode(one.name_dir), _text(one.name))))


def _listener(one: images.unix_sk_entry) -> Listener:
    name = _text(one.name)
    if one.type not in _CONNECTING or one.state not in (LISTEN, CLOSED):
        raise ImageError(f"the unix socket {name} of type {one.type} in state {one.state} cannot be made anew")
    return Listener(
        inode=one.ino,
        type=one.type,
        name=name,
        directory=os.fsdecode(one.name_dir) if not name.startswith("/") else "",
        mode=one.file_perms.mode & 0o7777,
        backlog=one.backlog if one.state == LISTEN else None,
        deleted=one.deleted,
        nonblocking=bool(one.flags & os.O_NONBLOCK),
        sndbuf=one.opts.so_sndbuf,
        rcvbuf=one.opts.so_rcvbuf,
        passes_credentials=one.opts.so_passcred,
    )


def _text(name: bytes) -> str:
    """The kernel counts the NUL at the end."""
    return os.fsdecode(name.split(b"\0", 1)[0])
