"""Unix sockets that are made anew in a pod, by the coordinator's hand and with the user's rights."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from slurmckpt.capture import criu, listeners
from slurmckpt.capture.unixnames import Listener
from slurmckpt.errors import Refused
from tests.unit.pod.harness import POD, FakeCoordinator, shell

pytestmark = pytest.mark.root

UID, GID = 4321, 4322


@pytest.fixture
def pod(coordinator: FakeCoordinator) -> criu.Target:
    init_pid = coordinator.run(shell("exec sleep 1000"))[0].pid
    return criu.Target(POD / "enter", init_pid, UID, GID, groups=[GID])


def wanted(name: str, **other: Any) -> Listener:
    values: dict[str, Any] = {
        "inode": 1, "type": socket.SOCK_STREAM, "name": name, "directory": "", "mode": 0o660, "backlog": 5,
        "deleted": False, "nonblocking": False, "sndbuf": 300000, "rcvbuf": 100000, "passes_credentials": False,
    }  # fmt: skip
    return Listener(**{**values, **other})


def make(pod: criu.Target, one: Listener) -> socket.socket:
    return asyncio.run(listeners._make(pod, one))


@pytest.fixture
def own(scratch: Path) -> Path:
    """A directory of the user's."""
    directory = scratch / "own"
    directory.mkdir()
    os.chown(directory, UID, GID)
    return directory


def test_it_is_the_users(pod: criu.Target, own: Path) -> None:
    path = own / "s"
    with make(pod, wanted(str(path))) as one, socket.socket(socket.AF_UNIX) as client:
        status = path.lstat()
        assert (status.st_uid, status.st_gid, oct(status.st_mode)) == (UID, GID, oct(0o140660))
        assert one.getsockname() == str(path)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 300000
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 100000
        client.connect(str(path))
        # Who listens: the user, and nobody whom this process could name.
        _, uid, gid = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        assert (uid, gid) == (UID, GID)


def test_kinds(pod: criu.Target, own: Path) -> None:
    with make(pod, wanted("relative", directory=str(own / "new"), type=socket.SOCK_SEQPACKET)) as one:
        assert (one.getsockname(), one.type) == ("relative", socket.SOCK_SEQPACKET)
        assert (own / "new/relative").is_socket()
    with make(pod, wanted(str(own / "gone"), deleted=True, nonblocking=True, passes_credentials=True)) as one:
        assert not (own / "gone").exists()
        assert not os.get_blocking(one.fileno())
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED)
    with make(pod, wanted(str(own / "bound"), backlog=None)) as one:
        assert not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def test_the_old_socket_makes_room_and_nothing_else(pod: criu.Target, own: Path) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(own / "s"))
        make(pod, wanted(str(own / "s"))).close()
    (own / "file").write_text("kept")
    with pytest.raises(Refused, match=r"something else is at the place of the unix socket .*/own/file now"):
        make(pod, wanted(str(own / "file")))
    assert (own / "file").read_text() == "kept"


def test_a_link_in_the_place_of_a_directory_leads_no_further_than_the_user(
    pod: criu.Target, own: Path, scratch: Path
) -> None:
    roots = scratch / "roots"
    roots.mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(roots / "s"))
        (own / "way").symlink_to(roots)
        with pytest.raises(Refused, match=r"cannot remove the old unix socket .*: Permission denied"):
            make(pod, wanted(str(own / "way/s")))
    assert (roots / "s").is_socket()
