"""Multicast groups that sockets have joined are noted at the capture and joined again at the restore."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurmckpt.capture import multicast
from slurmckpt.capture.processes import pod_processes
from tests.unit.capture.conftest import MakePod

pytestmark = pytest.mark.root

SOCKETS = """
four, other, six = (socket.socket(family, socket.SOCK_DGRAM) for family in (2, 2, 10))
lo = socket.if_nametoindex("lo")
{more}
ready()
"""
JOINED = """
four.setsockopt(0, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.1.2.3") + socket.inet_aton("127.0.0.1"))
# of one source only
other.setsockopt(0, 39, b"".join(socket.inet_aton(one) for one in ("239.1.2.4", "127.0.0.1", "127.0.0.9")))
other.setsockopt(0, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
six.setsockopt(41, socket.IPV6_JOIN_GROUP, socket.inet_pton(10, "ff12::7") + lo.to_bytes(4, sys.byteorder))
six.setsockopt(41, socket.IPV6_MULTICAST_IF, lo)
"""


def note(init_pid: int, directory: Path) -> list[object]:
    directory.mkdir()
    multicast.save(init_pid, pod_processes(init_pid), directory)
    try:
        found: dict[str, object] = json.loads((directory / multicast.FILE).read_text())
    except FileNotFoundError:
        return []
    return [found[key] for key in sorted(found)]


def test_groups_are_joined_again(make_pod: MakePod, tmp_path: Path) -> None:
    saved = note(make_pod(SOCKETS.format(more=JOINED)).init, tmp_path / "images")
    assert saved == [
        {"joined": [["lo", "239.1.2.3", 0, []]]},
        {"joined": [["lo", "239.1.2.4", 1, ["127.0.0.9"]]], "sends": ["lo", "127.0.0.1"]},
        {"joined": [["lo", "ff12::7", 0, []]], "sends": ["lo", ""]},
    ]
    restored = make_pod(SOCKETS.format(more=""))
    assert note(restored.init, tmp_path / "before") == []
    multicast.apply(restored.init, tmp_path / "images")
    assert note(restored.init, tmp_path / "after") == saved


def test_no_groups(make_pod: MakePod, tmp_path: Path) -> None:
    pod = make_pod(SOCKETS.format(more=""))
    assert note(pod.init, tmp_path / "images") == []
    multicast.apply(pod.init, tmp_path / "images")
