"""Connections between pods: whether two images fit together, and ends that hear nothing until all of them exist."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from slurmckpt.capture import criu_files_pb2 as images
from slurmckpt.capture import crossings, heldsockets, tcpimages
from slurmckpt.capture.crossings import Dumped, Torn, listen, pairs, seal
from slurmckpt.capture.fileimages import entries
from slurmckpt.capture.inspect.sockets import CLOSED, ESTABLISHED, LISTEN
from slurmckpt.capture.processes import pod_processes
from slurmckpt.errors import Refused
from tests.unit.capture.conftest import MakePod
from tests.unit.capture.test_tcpimages import image as stream_image
from tests.unit.capture.test_unixnames import write

FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING, SYN_SENT = 4, 5, 8, 9, 11, 2
DROP_ALL = 0x06 << 48


@dataclass(frozen=True)
class End:
    """received, written, queued: as in the image. filters: socket filter instructions."""

    local: str
    remote: str
    state: int = ESTABLISHED
    received: int = 1000
    written: int = 5000
    queued: int = 0
    keepalive: bool = False
    filters: Sequence[int] = field(default=())

    def entry(self, inode: int) -> images.file_entry:
        family = socket.AF_INET6 if self.local.startswith("[") else socket.AF_INET
        (src, src_port), (dst, dst_port) = words(self.local), words(self.remote)
        opts = images.sk_opts_entry(
            so_sndbuf=1, so_rcvbuf=1, so_keepalive=self.keepalive or None, so_filter=self.filters
        )
        return images.file_entry(
            isk=images.inet_sk_entry(
                ino=inode,
                family=int(family),
                type=int(socket.SOCK_STREAM),
                proto=6,
                state=self.state,
                src_port=src_port,
                dst_port=dst_port,
                src_addr=src,
                dst_addr=dst,
                opts=opts,
            )
        )


def words(endpoint: str) -> tuple[tuple[int, ...], int]:
    address, _, port = endpoint.rpartition(":")
    family = socket.AF_INET6 if address.startswith("[") else socket.AF_INET
    data = socket.inet_pton(family, address.strip("[]"))
    return struct.unpack(f"={len(data) // 4}I", data), int(port)


def dumped(directory: Path, step: str, *ends: End, network: int = 1) -> Dumped:
    directory = directory / step
    directory.mkdir()
    write(directory, *(end.entry(inode) for inode, end in enumerate(ends, 0x1F)))
    for inode, end in enumerate(ends, 0x1F):
        data = stream_image({1: 0, 2: end.received, 3: end.queued, 4: end.written, 5: 7}, b"")
        (directory / f"tcp-stream-{inode:x}.img").write_bytes(data)
    return Dumped(step, directory, network)


CLIENT = End("10.0.0.1:40001", "10.0.0.1:5000", received=700, written=300)
SERVER = End("10.0.0.1:5000", "10.0.0.1:40001", received=300, written=700)


def test_both_ends_become_deaf(tmp_path: Path) -> None:
    inside = [End(f"127.0.0.1:{one}", f"127.0.0.1:{3 - one}", received=1, written=1) for one in (1, 2)]
    outside = End("10.0.0.1:40002", "10.0.0.9:80", keepalive=True)
    one = dumped(tmp_path, "batch", *inside, replace(CLIENT, keepalive=True), outside)
    other = dumped(tmp_path, "0", SERVER)
    seal([one, other])
    assert pairs(one.images) == {("10.0.0.1:40001", "10.0.0.1:5000"): True}
    assert pairs(other.images) == {("10.0.0.1:5000", "10.0.0.1:40001"): False}
    filters = [list(entry.isk.opts.so_filter) for entry in entries(one.images)]
    assert filters == [[], [], [DROP_ALL], []]
    assert [entry.isk.opts.so_keepalive for entry in entries(one.images)] == [False, False, False, True]
    assert [list(entry.isk.opts.so_filter) for entry in entries(other.images)] == [[DROP_ALL]]
    assert [entry.isk.dst_port for entry in entries(one.images)] == [2, 1, 5000, 80]


def test_an_address_of_version_4_in_a_socket_of_version_6(tmp_path: Path) -> None:
    server = replace(SERVER, local="[::ffff:10.0.0.1]:5000", remote="[::ffff:10.0.0.1]:40001")
    seal([dumped(tmp_path, "batch", CLIENT), other := dumped(tmp_path, "0", server)])
    assert pairs(other.images) == {("10.0.0.1:5000", "10.0.0.1:40001"): False}


def test_equal_addresses_in_other_networks_are_no_connection(tmp_path: Path) -> None:
    seal([one := dumped(tmp_path, "0", CLIENT), other := dumped(tmp_path, "1", SERVER, network=2)])
    assert pairs(one.images) == pairs(other.images) == {}


def test_what_is_no_connection_yet_or_any_more(tmp_path: Path) -> None:
    """They have no image of a stream."""
    listening = End("0.0.0.0:5000", "0.0.0.0:0", LISTEN)
    one = dumped(tmp_path, "0", listening, replace(CLIENT, state=SYN_SENT), replace(SERVER, state=CLOSED))
    for path in one.images.glob("tcp-stream-*"):
        path.unlink()
    seal([one])
    assert pairs(one.images) == {}


WHOLE = [
    # Nothing is under way; something is; all that is queued is; it has come, and is not acknowledged.
    (CLIENT, SERVER),
    (replace(CLIENT, written=310, queued=30), SERVER),
    (replace(CLIENT, written=310, queued=10), SERVER),
    (replace(CLIENT, queued=10), SERVER),
    # Numbers begin again.
    (replace(CLIENT, written=5, queued=20), replace(SERVER, received=2**32 - 10)),
    # The end of the stream has come and is acknowledged, or not; or has not come.
    (replace(CLIENT, state=FIN_WAIT2), replace(SERVER, state=CLOSE_WAIT)),
    (replace(CLIENT, state=FIN_WAIT1), replace(SERVER, state=CLOSE_WAIT)),
    (replace(CLIENT, state=FIN_WAIT1, written=301), SERVER),
    (replace(CLIENT, state=FIN_WAIT1, written=311, queued=10), SERVER),
    (replace(CLIENT, state=CLOSING), replace(SERVER, state=CLOSING)),
    (replace(CLIENT, state=LAST_ACK), replace(SERVER, state=FIN_WAIT2)),
]
TORN = [
    # Delivered after the image of the receiver was written, before that of the sender.
    (replace(CLIENT, written=310), SERVER),
    (replace(CLIENT, written=310, queued=9), SERVER),
    (replace(CLIENT, written=5, queued=14), replace(SERVER, received=2**32 - 10)),
    (replace(CLIENT, state=FIN_WAIT2, written=301), SERVER),
    (replace(CLIENT, state=FIN_WAIT1, written=311, queued=9), SERVER),
    # What nobody has sent.
    (replace(CLIENT, written=299), SERVER),
]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("ends", "whole"), [(each, True) for each in WHOLE] + [(each, False) for each in TORN])
def test_whether_two_images_fit(
    tmp_path: Path, ends: tuple[End, End], whole: bool, together: bool, turned: bool
) -> None:
    one, other = reversed(ends) if turned else ends
    if together:
        pods = [dumped(tmp_path, "0", one, other)]
    else:
        pods = [dumped(tmp_path, "batch", one), dumped(tmp_path, "0", other)]
    if whole:
        seal(pods)
        return
    place = "(step 0|the batch script)"
    way = rf"from 10\.0\.0\.1:40001 of {place} to 10\.0\.0\.1:5000 of {place} when the images were written"
    with pytest.raises(Torn, match=f"^data was on its way in the TCP connection {way}"):
        seal(pods)
    assert not any(pairs(pod.images) for pod in pods)


def test_one_that_has_a_filter(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^the TCP connection from 10\.0\.0\.1:40001 to 10\.0\.0\.1:5000 has a socket f"):
        seal([dumped(tmp_path, "0", replace(CLIENT, filters=[DROP_ALL])), dumped(tmp_path, "1", SERVER)])


def test_an_image_that_lacks_its_stream(tmp_path: Path) -> None:
    one, other = dumped(tmp_path, "0", CLIENT), dumped(tmp_path, "1", SERVER)
    (one.images / "tcp-stream-1f.img").write_bytes(stream_image({1: 5}, b""))
    with pytest.raises(tcpimages.ImageError, match=r"^tcp-stream-1f\.img lacks its field 2$"):
        seal([one, other])


DEAF = """
import ctypes, struct
listening = socket.create_server(("127.0.0.1", 0))
deaf = socket.create_connection(listening.getsockname())
other, _ = listening.accept()
drop = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0))
deaf.setsockopt(socket.SOL_SOCKET, 26, struct.pack("@HP", 1, ctypes.addressof(drop)))
other.send(b"hello")
ready()
"""


@pytest.mark.root
@pytest.mark.parametrize("keepalive", [False, True])
def test_a_deaf_end_hears_again(make_pod: MakePod, tmp_path: Path, keepalive: bool) -> None:
    pod = make_pod(DEAF)
    connected = [
        (key, one.getsockname(), one.getpeername())
        for key, one in heldsockets.all_of(pod_processes(pod.init))
        if one.family == socket.AF_INET and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    ]
    # The one that is made first has the lower number.
    key, local, remote = min(connected, key=lambda one: int(one[0].split("/")[1]))
    names = {"local": f"{local[0]}:{local[1]}", "remote": f"{remote[0]}:{remote[1]}", "keepalive": keepalive}
    (tmp_path / crossings.FILE).write_text(json.dumps([names]))
    for _, one in heldsockets.named(pod_processes(pod.init), [key]):
        with pytest.raises(BlockingIOError):
            one.recv(9, socket.MSG_DONTWAIT)
    listen(pod.init, tmp_path)
    for _, one in heldsockets.named(pod_processes(pod.init), [key]):
        one.settimeout(30)
        assert one.recv(9) == b"hello", "TCP sends it again"
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == keepalive


@pytest.mark.root
def test_one_that_did_not_come_back(make_pod: MakePod, tmp_path: Path) -> None:
    pod = make_pod("ready()")
    listen(pod.init, tmp_path)
    note = {"local": "10.0.0.1:1", "remote": "10.0.0.1:2", "keepalive": False}
    (tmp_path / crossings.FILE).write_text(json.dumps([note]))
    with pytest.raises(Refused, match=r"^the TCP connection from 10\.0\.0\.1:1 to 10\.0\.0\.1:2 did not come back$"):
        listen(pod.init, tmp_path)
