from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import sys
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.capture.inspect.sockdiag import parse_messages
from slurmckpt.capture.inspect.sockets import (
    ESTABLISHED,
    EVERY,
    LISTEN,
    Endpoint,
    InetSocket,
    ends_outside,
    node_addresses,
    parse_endpoint,
    parse_table,
    read_tables,
)
from slurmckpt.capture.inspect.tcpdiag import tcp_sockets
from slurmckpt.capture.inspect.unixdiag import UnixSocket, parse_socket, unix_sockets

addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))
endpoints = st.builds(lambda a, p: Endpoint(plainly(a), p), addresses, st.integers(0, 65535))
HEADER = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def plainly(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def as_kernel_writes(endpoint: Endpoint) -> str:
    packed = endpoint.address.packed
    words = struct.unpack(f">{len(packed) // 4}I", packed)
    order = "<" if sys.byteorder == "little" else ">"
    return (
        "".join(f"{struct.unpack('>I', struct.pack(order + 'I', w))[0]:08X}" for w in words) + f":{endpoint.port:04X}"
    )


def line(one: InetSocket) -> bytes:
    ends = f"{as_kernel_writes(one.local)} {as_kernel_writes(one.remote)}"
    rest = f"00000000:00000000 00:00000000 00000000     0        0 {one.inode} 1 0000000000000000 20 4 30 10 -1"
    return f"   0: {ends} {one.state:02X} {rest}\n".encode()


def sock(local: str, remote: str, state: int = ESTABLISHED, inode: int = 1) -> InetSocket:
    def end(text: str) -> Endpoint:
        host, _, port = text.rpartition(":")
        return Endpoint(ipaddress.ip_address(host), int(port))

    return InetSocket(end(local), end(remote), state, inode)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"0100007F:1F90", "127.0.0.1:8080"),
        (b"00000000000000000000000001000000:0016", "[::1]:22"),
        (b"0000000000000000FFFF00000100007F:0050", "127.0.0.1:80"),
        (b"B80D01200000000067452301EFCDAB89:FFFF", "[2001:db8::123:4567:89ab:cdef]:65535"),
    ],
)
def test_addresses_as_the_kernel_writes_them(text: bytes, expected: str) -> None:
    if sys.byteorder == "little":
        assert str(parse_endpoint(text)) == expected


@given(st.lists(st.builds(InetSocket, endpoints, endpoints, st.integers(1, 12), st.integers(1, 2**32 - 1))))
def test_tables_are_read_back(sockets: list[InetSocket]) -> None:
    text = HEADER + b"".join(map(line, sockets))
    assert list(parse_table(text, {s.inode for s in sockets})) == sockets
    assert list(parse_table(text, set())) == []


@given(st.binary(max_size=400))
def test_a_table_of_any_shape_is_survived(text: bytes) -> None:
    for one in parse_table(HEADER + text, range(2**63)):
        assert one.inode >= 0


def test_real_connections_are_found_in_the_tables() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            inodes = {os.fstat(s.fileno()).st_ino: s for s in (server, client, accepted)}
            found = {one.inode: one for one in tcp_sockets(os.getpid(), inodes)}
            assert found.keys() == inodes.keys()
            port = server.getsockname()[1]
            mine = found[os.fstat(client.fileno()).st_ino]
            assert (str(mine.remote), mine.state) == (f"127.0.0.1:{port}", ESTABLISHED)
            assert found[os.fstat(server.fileno()).st_ino].state == LISTEN
            assert ends_outside(found.values(), []) == []
            assert ends_outside([mine], []) == [mine]


@pytest.mark.parametrize("diagnosis", [True, False])
def test_the_diagnosis_says_what_the_tables_say(diagnosis: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listening with a connection that waits, half closed on both sides, closed (TIME_WAIT), IPv4 by an IPv6 socket."""
    if not diagnosis:

        def missing(request: bytes) -> NoReturn:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "sock_diag")

        monkeypatch.setattr("slurmckpt.capture.inspect.sockdiag.dump", missing)
    with (
        socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server,
        socket.create_connection(("127.0.0.1", server.getsockname()[1])) as half,
        socket.create_connection(("::1", server.getsockname()[1])) as other,
        socket.create_connection(("127.0.0.1", server.getsockname()[1])) as closed,
    ):
        accepted = [server.accept()[0] for _ in range(3)]
        half.shutdown(socket.SHUT_WR)
        closed.close()
        accepted.pop().close()
        with accepted[0], accepted[1], socket.create_connection(("127.0.0.1", server.getsockname()[1])):
            port = server.getsockname()[1]
            mine = {os.fstat(one.fileno()).st_ino for one in (server, half, other, *accepted)}
            expected: list[InetSocket] = []
            # The other end says within 40 ms that it has seen the end: FIN_WAIT1 becomes FIN_WAIT2.
            while not expected or 4 in {one.state for one in expected}:
                expected = [one for one in read_tables(os.getpid(), ("tcp", "tcp6"), EVERY) if port in ports(one)]
            found = [one for one in tcp_sockets(os.getpid()) if port in ports(one)]
            assert sorted(found, key=str) == sorted(expected, key=str)
            assert {one.state for one in found} == {ESTABLISHED, 5, 6, 8, LISTEN}
            assert [one.waiting for one in found if one.state == LISTEN] == [1]
            assert {one.inode for one in tcp_sockets(os.getpid(), mine)} == mine
            assert {one.inode for one in tcp_sockets(os.getpid(), {0}) if port in ports(one)} == {0}


def ports(one: InetSocket) -> tuple[int, int]:
    return one.local.port, one.remote.port


def test_a_connection_inside_the_pod_is_not_outside() -> None:
    a, b = sock("10.0.0.1:5", "10.0.0.1:6"), sock("10.0.0.1:6", "10.0.0.1:5")
    assert ends_outside([a, b], []) == []
    assert ends_outside([a], []) == [a]


def test_a_connection_that_waits_to_be_accepted_ends_where_its_listener_is() -> None:
    client, waiting = sock("127.0.0.1:5", "127.0.0.1:80"), sock("127.0.0.1:80", "127.0.0.1:5", inode=0)
    everywhere = sock("0.0.0.0:80", "0.0.0.0:0", LISTEN)
    assert ends_outside([client, everywhere], [waiting]) == []
    assert ends_outside([client, sock("0.0.0.0:81", "0.0.0.0:0", LISTEN)], [waiting]) == [client]


def test_a_connection_that_was_closed_at_the_other_end_leads_nowhere() -> None:
    close_wait = 8
    client = sock("127.0.0.1:5", "127.0.0.1:80", close_wait)
    assert ends_outside([client], [sock("127.0.0.1:80", "127.0.0.1:5", 5, inode=0)]) == []
    assert ends_outside([client], []) == []
    # But half-closed to another node is still a connection with somebody.
    far = sock("10.0.0.1:5", "10.0.0.2:80", close_wait)
    assert ends_outside([far], []) == [far]


def test_addresses_that_a_restore_needs() -> None:
    sockets = [
        sock("10.0.0.9:1", "0.0.0.0:0", LISTEN),
        sock("10.0.0.10:1", "10.0.0.2:2"),
        sock("10.0.0.10:3", "10.0.0.2:2"),
        sock("127.0.0.1:1", "0.0.0.0:0", LISTEN),
        sock("0.0.0.0:1", "0.0.0.0:0", LISTEN),
        sock("::1:1", ":::0", LISTEN),
        sock("fd00::5:1", ":::0", LISTEN),
        sock("239.1.2.3:1", "0.0.0.0:0", 7),
    ]
    assert node_addresses(sockets) == ["10.0.0.9", "10.0.0.10", "fd00::5"]


def test_unix_peers_are_the_kernels() -> None:
    a, b = socket.socketpair()
    with a, b, socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(f"\0slurmckpt-test-{os.getpid()}")
        server.listen()
        client.connect(server.getsockname())
        found = unix_sockets(os.getpid())
        inode = {s: os.fstat(s.fileno()).st_ino for s in (a, b, server, client)}
        assert found[inode[a]].peer == inode[b]
        assert found[inode[b]].peer == inode[a]
        assert found[inode[server]].name == f"@slurmckpt-test-{os.getpid()}"
        assert found[inode[server]].peer is None
        # Not accepted yet: it has no inode to name, but the listener knows who waits.
        assert found[inode[client]].peer == 0
        assert found[inode[server]].waiting == (inode[client],)


def message(one: UnixSocket) -> bytes:
    def attribute(kind: int, value: bytes) -> bytes:
        return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)

    body = struct.pack("=BBBBIII", socket.AF_UNIX, one.type, 1, 0, one.inode, 0, 0)
    name = os.fsencode(one.name)
    if name:
        body += attribute(0, b"\0" + name[1:] if name.startswith(b"@") else name + b"\0")
    body += attribute(2, struct.pack("=I", one.peer)) if one.peer is not None else b""
    body += attribute(3, struct.pack(f"={len(one.waiting)}I", *one.waiting))
    return struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + body


numbers = st.integers(0, 2**32 - 1)
plain_names = st.text(st.characters(codec="ascii", exclude_characters="\0@"), max_size=20)
names = st.one_of(plain_names, plain_names.map("@{}".format))


@given(
    st.lists(
        st.builds(
            UnixSocket, numbers, st.sampled_from([1, 2, 5]), names, st.none() | numbers, st.lists(numbers).map(tuple)
        ),
        max_size=4,
        unique_by=lambda one: one.inode,
    )
)
def test_diagnosis_messages_are_read_back(sockets: list[UnixSocket]) -> None:
    done = struct.pack("=IHHIII", 20, 3, 2, 1, 0, 0)
    bodies, last, interrupted = parse_messages(b"".join(map(message, sockets)) + done)
    assert (last, interrupted) == (True, False)
    assert [parse_socket(body) for body in bodies] == sockets


def test_an_error_at_the_end_of_a_diagnosis_is_one() -> None:
    """So says a kernel that has the family, but no module for its protocol."""
    with pytest.raises(FileNotFoundError):
        parse_messages(struct.pack("=IHHIIi", 20, 3, 2, 1, 0, -errno.ENOENT))


@given(st.binary(max_size=200))
def test_diagnosis_messages_of_any_shape_are_survived(data: bytes) -> None:
    try:
        bodies, _, _ = parse_messages(data)
    except OSError:
        return
    for body in bodies:
        parse_socket(body)
