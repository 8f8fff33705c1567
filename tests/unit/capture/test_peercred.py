"""Whoever connects to a restored unix socket finds the job's user there, and not root."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest

from slurmckpt.capture import peercred
from slurmckpt.capture.inspect.unixdiag import unix_sockets
from tests.unit.capture.conftest import MakePod

pytestmark = pytest.mark.root

LISTENERS = """
import shutil
kept = []
for kind, backlog in ((socket.SOCK_STREAM, 7), (socket.SOCK_SEQPACKET, 300)):
    one = socket.socket(socket.AF_UNIX, kind)
    one.bind(f"{where}/{{int(kind)}}")
    one.listen(backlog)
    os.chmod(f"{where}/{{int(kind)}}", 0o777)
    kept.append(one)
pair = socket.socketpair()
ready()
"""


def listener(path: Path, kind: socket.SocketKind) -> tuple[int, int]:
    """User and group that one finds who connects."""
    with socket.socket(socket.AF_UNIX, kind) as client:
        client.connect(str(path))
        _, uid, gid = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid, gid


def test_it_is_the_users(make_pod: MakePod, tmp_path: Path) -> None:
    pod = make_pod(LISTENERS.replace("{where}", str(tmp_path)).replace("{{", "{").replace("}}", "}"))
    kinds = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
    before = {one.name: one.backlog for one in unix_sockets(pod.init).values()}
    assert [listener(tmp_path / str(int(kind)), kind) for kind in kinds] == [(0, 0)] * 2
    peercred.listen_again(pod.init, 4321, 4322)
    assert [listener(tmp_path / str(int(kind)), kind) for kind in kinds] == [(4321, 4322)] * 2
    after = {one.name: one.backlog for one in unix_sockets(pod.init).values()}
    assert [after[str(tmp_path / str(int(kind)))] for kind in kinds] == [7, 300]
    assert before == after
    assert os.geteuid() == 0
