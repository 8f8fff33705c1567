"""Names of unix sockets are taken out of CRIU's image where their user may change the way to them."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest

from slurmckpt.capture import criu_files_pb2 as images
from slurmckpt.capture import unixnames
from slurmckpt.capture.fileimages import ImageError, rewrite
from slurmckpt.capture.inspect.sockets import CLOSED, ESTABLISHED, LISTEN


def entry(inode: int, name: bytes, state: int = LISTEN, peer: int = 0, **more: object) -> images.file_entry:
    """A unix socket of the image."""
    fields: dict[str, object] = {"type": int(socket.SOCK_STREAM), "flags": 2, "backlog": 7, **more}
    return images.file_entry(
        usk=images.unix_sk_entry(
            ino=inode,
            name=name,
            state=state,
            peer=peer,
            opts=images.sk_opts_entry(so_sndbuf=1000, so_rcvbuf=2000),
            file_perms=images.file_perms_entry(mode=0o140640),
            **fields,  # type: ignore[arg-type]
        )
    )


def write(directory: Path, *entries: images.file_entry) -> None:
    """An image of open files."""
    messages = [one.SerializeToString() for one in entries]
    body = b"".join(struct.pack("<I", len(one)) + one for one in messages)
    (directory / "files.img").write_bytes(struct.pack("<II", 0x54564319, 0x56303138) + body)


def names(directory: Path) -> list[bytes]:
    """Those in the image."""
    found: list[bytes] = []

    def look(one: images.file_entry) -> bool:
        found.append(one.usk.name)
        return False

    rewrite(directory, look)
    return found


def exposed(directory: str) -> bool:
    return directory.startswith("/home")


def test_listeners_and_what_they_accepted_lose_their_names(tmp_path: Path) -> None:
    write(
        tmp_path,
        entry(1, b"/home/a/s\0"),
        entry(2, b"/home/a/s\0", ESTABLISHED, 3),
        entry(3, b"", ESTABLISHED, 2),
        entry(4, b"/tmp/s\0"),
        entry(5, b"\0abstract"),
        images.file_entry(reg=images.reg_file_entry(name=b"/home/a/s")),
    )
    (found,) = unixnames.take(tmp_path, exposed)
    assert found == unixnames.Listener(
        inode=1,
        type=socket.SOCK_STREAM,
        name="/home/a/s",
        directory="",
        mode=0o640,
        backlog=7,
        deleted=False,
        nonblocking=False,
        sndbuf=1000,
        rcvbuf=2000,
        passes_credentials=False,
    )
    assert found.key == "socket:[1]"
    assert names(tmp_path) == [b"", b"", b"", b"/tmp/s\0", b"\0abstract", b""]


def test_a_second_restore_from_the_same_images_finds_them_again(tmp_path: Path) -> None:
    write(tmp_path, entry(1, b"/home/a/s\0"))
    assert unixnames.take(tmp_path, exposed) == unixnames.take(tmp_path, exposed)
    assert names(tmp_path) == [b""]


def test_a_relative_name_begins_where_it_was_bound(tmp_path: Path) -> None:
    write(tmp_path, entry(1, b"s\0", CLOSED, name_dir=b"/home/a", flags=0o4002, deleted=True))
    (found,) = unixnames.take(tmp_path, exposed)
    assert (found.name, found.directory, found.backlog) == ("s", "/home/a", None)
    assert found.nonblocking and found.deleted


def test_a_waiting_connection_is_for_another_moment(tmp_path: Path) -> None:
    write(tmp_path, entry(1, b"/home/a/s\0"), entry(2, b"", ESTABLISHED, 1))
    with pytest.raises(unixnames.Waiting, match="a connection waits to be accepted at the unix socket /home/a/s"):
        unixnames.find(tmp_path, exposed)


def test_datagrams_cannot_be_made_anew(tmp_path: Path) -> None:
    write(tmp_path, entry(1, b"/home/a/s\0", CLOSED, type=int(socket.SOCK_DGRAM)))
    with pytest.raises(ImageError, match="the unix socket /home/a/s of type 2 in state 7 cannot be made anew"):
        unixnames.take(tmp_path, exposed)
    assert names(tmp_path) == [b"/home/a/s\0"]
