"""Options of sockets that CRIU does not carry are noted at the capture and set at the restore."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from slurmckpt.capture import socketoptions
from slurmckpt.capture.processes import pod_processes
from tests.unit.capture.conftest import MakePod

pytestmark = pytest.mark.root

SOCKETS = """
one = socket.create_server(("127.0.0.1", 0))
other = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
{more}
os.set_inheritable(one.fileno(), True)
if os.fork() == 0:
    signal.pause()
ready()
"""
CHANGED = """
one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 12345)
one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
other.setsockopt(socket.IPPROTO_IPV6, 16, 33)
"""


def values(init_pid: int, directory: Path) -> dict[str, socketoptions.Options]:
    directory.mkdir()
    socketoptions.save(pod_processes(init_pid), directory)
    found: dict[str, socketoptions.Options] = json.loads((directory / socketoptions.FILE).read_text())
    return found


def test_what_differs_is_set(make_pod: MakePod, tmp_path: Path) -> None:
    saved = values(make_pod(SOCKETS.format(more=CHANGED)).init, tmp_path / "images")
    assert len(saved) == 2, "each socket once, however many processes have it"
    tcp = next(one for one in saved.values() if "6/18" in one)
    udp = next(one for one in saved.values() if "6/18" not in one)
    assert bytes.fromhex(tcp["6/18"]) == struct.pack("=i", 12345)
    assert bytes.fromhex(udp["41/16"]) == struct.pack("=i", 33)
    assert bytes.fromhex(tcp["6/13"]).rstrip(b"\0") == b"reno"
    restored = make_pod(SOCKETS.format(more=""))
    assert values(restored.init, tmp_path / "before") != saved
    socketoptions.apply(restored.init, tmp_path / "images")
    assert values(restored.init, tmp_path / "after") == saved


def test_of_unix_sockets_what_is_not_usual(make_pod: MakePod, tmp_path: Path) -> None:
    pair = "a, b = socket.socketpair()\n{more}\nready()"
    saved = values(make_pod(pair.format(more="a.setsockopt(socket.SOL_SOCKET, 42, 7)")).init, tmp_path / "images")
    assert list(saved.values()) == [{"1/42": struct.pack("=i", 7).hex()}]
    restored = make_pod(pair.format(more=""))
    socketoptions.apply(restored.init, tmp_path / "images")
    assert values(restored.init, tmp_path / "after") == saved


def test_nothing_to_note(make_pod: MakePod, tmp_path: Path) -> None:
    pod = make_pod("a, b = socket.socketpair()\nready()")
    socketoptions.save(pod_processes(pod.init), tmp_path)
    assert not (tmp_path / socketoptions.FILE).exists()
    socketoptions.apply(pod.init, tmp_path)
