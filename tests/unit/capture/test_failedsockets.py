"""TCP connections that have failed without their program's knowledge fail again after a restore."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from slurmckpt.capture import failedsockets
from slurmckpt.capture.processes import Process
from tests.unit.capture.looking import MakePod, look

pytestmark = pytest.mark.root


def failed(data: bytes, address: str = "127.0.0.1") -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        one = socket.create_connection(listener.getsockname()[:2])
        other, _ = listener.accept()
        with other:
            other.sendall(data)
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return one


def ends_with(one: socket.socket) -> tuple[bytes, str]:
    data = b""
    try:
        while piece := one.recv(1 << 20):
            data += piece
    except OSError as error:
        assert one.recv(1) == b""
        return data, type(error).__name__
    return data, "end"


FAIL = """
import struct
def failed():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        return one
fresh, datagrams, gone, told = socket.socket(), socket.socket(type=socket.SOCK_DGRAM), failed(), failed()
assert told.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
os.dup2(gone.fileno(), 99)
gone.close()
ready()
"""


def test_only_what_has_failed_is_noted(make_pod: MakePod) -> None:
    found = look(make_pod(FAIL))
    assert (found.failed_sockets, found.refusals) == (["2/99"], [])


@pytest.mark.parametrize("data", [b"", b"what came before" * 2000])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("repair", [False, True])
def test_it_fails_again(
    data: bytes, address: str, repair: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = cast(Process, SimpleNamespace(pid=os.getpid(), ns_pid=1))
    monkeypatch.setattr(failedsockets, "pod_processes", lambda init_pid: [me])
    with failed(data, address) as one:
        assert failedsockets.has_failed(one)
        # What a restore without us makes of it.
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if repair:
            one.setsockopt(socket.IPPROTO_TCP, 19, 1)
        failedsockets.save([f"1/{one.fileno()}", "1/999"], tmp_path)
        failedsockets.apply(1, tmp_path)
        assert failedsockets.has_failed(one)
        assert ends_with(one) == (data, "ConnectionResetError")
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == (0 if repair else 1)


def test_without_any_there_is_no_note(tmp_path: Path) -> None:
    failedsockets.save([], tmp_path)
    assert not list(tmp_path.iterdir())
    failedsockets.apply(1, tmp_path)
