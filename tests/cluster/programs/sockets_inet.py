"""Cases of sockets.py: TCP and UDP sockets, and their options."""

import socket
import struct
import time

from sockets_common import BIG, Case, answers, connected, drain, equal, fill, text  # type: ignore[import-not-found]


def tcp(family: int) -> Case:
    listener, client, server = connected(family)
    names = [one.getsockname() for one in (listener, client, server)]
    client.send(text(5000))
    server.send(text(7000))
    yield
    equal([one.getsockname() for one in (listener, client, server)], names)
    equal(drain(server, 5000), text(5000))
    equal(drain(client, 7000), text(7000))
    client.send(b"more")
    equal(server.recv(9), b"more")
    answers(listener)


def tcp_4() -> Case:
    return tcp(socket.AF_INET)


def tcp_6() -> Case:
    return tcp(socket.AF_INET6)


def tcp_both_families() -> Case:
    listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    client = socket.create_connection(("127.0.0.1", listener.getsockname()[1]))
    server, _ = listener.accept()
    server.send(b"mapped")
    yield
    equal(client.recv(9), b"mapped")
    for host in ("127.0.0.1", "::1"):
        with socket.create_connection((host, listener.getsockname()[1])) as late:
            listener.accept()[0].send(b"late")
            equal(late.recv(9), b"late")


def tcp_full_both_ways() -> Case:
    _, client, server = connected()
    ours, theirs = fill(client), fill(server)
    yield
    equal(drain(server, ours) == (BIG * (ours // len(BIG) + 1))[:ours], True)
    equal(drain(client, theirs) == (BIG * (theirs // len(BIG) + 1))[:theirs], True)
    client.send(b"more")
    equal(server.recv(9), b"more")


def tcp_half_closed() -> Case:
    _, client, server = connected()
    client.send(b"last words")
    client.shutdown(socket.SHUT_WR)
    yield
    equal(drain(server, 99), b"last words")
    server.send(b"answer")
    server.close()
    equal(drain(client, 99), b"answer")


def tcp_other_end_closed() -> Case:
    _, client, server = connected()
    client.send(b"last words")
    client.close()
    yield
    equal(drain(server, 99), b"last words")


def tcp_time_wait() -> Case:
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.connect(listener.getsockname())
    server, _ = listener.accept()
    port = client.getsockname()[1]
    client.close()
    server.close()
    yield
    late = socket.socket()
    late.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    late.bind(("127.0.0.1", port))
    answers(listener)


def tcp_being_opened() -> Case:
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    first = socket.create_connection(listener.getsockname())
    equal(drain_later(listener), first.getsockname())
    yield
    answers(listener)


def drain_later(listener: socket.socket) -> object:
    """Accept one; its peer's name."""
    return listener.accept()[1]


def tcp_one_port_for_two() -> Case:
    listeners = []
    port = 0
    for _ in range(2):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(("127.0.0.1", port))
        one.listen(5)
        port = one.getsockname()[1]
        listeners.append(one)
    yield
    with socket.create_connection(("127.0.0.1", port)) as client:
        for one in listeners:
            one.setblocking(False)
        for _ in range(100):
            for one in listeners:
                try:
                    one.accept()[0].send(b"one of two")
                except BlockingIOError:
                    continue
                equal(client.recv(99), b"one of two")
                return
            time.sleep(0.05)
    raise AssertionError("nobody accepted")


def tcp_backlog() -> Case:
    # tcp_info of a listening socket: tcpi_sacked is the backlog.
    def backlog(one: socket.socket) -> int:
        return int(struct.unpack_from("I", one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 28)[0])

    listener = socket.create_server(("127.0.0.1", 0), backlog=3000)
    before = backlog(listener)
    yield
    equal(backlog(listener), before)


def tcp_bound_only() -> Case:
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    name = one.getsockname()
    yield
    equal(one.getsockname(), name)
    one.listen(1)
    answers(one)


OPTIONS = {
    "SO_KEEPALIVE": (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    "SO_REUSEADDR": (socket.SOL_SOCKET, socket.SO_REUSEADDR, 1),
    "SO_BROADCAST": (socket.SOL_SOCKET, socket.SO_BROADCAST, 1),
    "SO_OOBINLINE": (socket.SOL_SOCKET, socket.SO_OOBINLINE, 1),
    "SO_PRIORITY": (socket.SOL_SOCKET, socket.SO_PRIORITY, 3),
    "SO_RCVBUF": (socket.SOL_SOCKET, socket.SO_RCVBUF, 100000),
    "SO_SNDBUF": (socket.SOL_SOCKET, socket.SO_SNDBUF, 120000),
    "SO_RCVLOWAT": (socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2),
    "TCP_NODELAY": (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    "TCP_KEEPIDLE": (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77),
    "TCP_KEEPINTVL": (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 7),
    "TCP_KEEPCNT": (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5),
    "TCP_USER_TIMEOUT": (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 12345),
    "TCP_NOTSENT_LOWAT": (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 5000),
    "TCP_LINGER2": (socket.IPPROTO_TCP, socket.TCP_LINGER2, 7),
    "TCP_SYNCNT": (socket.IPPROTO_TCP, socket.TCP_SYNCNT, 3),
    "TCP_DEFER_ACCEPT": (socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 3),
    "IP_MTU_DISCOVER": (socket.IPPROTO_IP, 10, 3),
    "IP_RECVERR": (socket.IPPROTO_IP, 11, 1),
    "IP_TOS": (socket.IPPROTO_IP, socket.IP_TOS, 16),
    "IP_TTL": (socket.IPPROTO_IP, socket.IP_TTL, 33),
}


def options_of(name: str) -> Case:
    level, number, value = OPTIONS[name]
    ends = connected()
    for one in ends:
        one.setsockopt(level, number, value)
    before = [one.getsockopt(level, number) for one in ends]
    yield
    equal([one.getsockopt(level, number) for one in ends], before)


def tcp_congestion() -> Case:
    ends = connected()
    for one in ends:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    yield
    for one in ends:
        equal(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0"), b"reno")


def ipv6_options() -> Case:
    one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    wanted = [(16, 33), (18, 5), (67, 8), (66, 1), (19, 0)]
    for number, value in wanted:
        one.setsockopt(socket.IPPROTO_IPV6, number, value)
    yield
    equal([(number, one.getsockopt(socket.IPPROTO_IPV6, number)) for number, _ in wanted], wanted)


def udp(family: int) -> Case:
    server = socket.socket(family, socket.SOCK_DGRAM)
    server.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    client = socket.socket(family, socket.SOCK_DGRAM)
    client.connect(server.getsockname())
    names = [server.getsockname(), client.getsockname(), client.getpeername()]
    # Not read yet, in both directions; one of them is empty.
    unread = [b"first", b"", text(30000)]
    for data in unread:
        client.send(data)
        server.sendto(data, client.getsockname())
    yield
    equal([server.recvfrom(99999) for _ in unread], [(data, client.getsockname()) for data in unread])
    equal([client.recv(99999) for _ in unread], unread)
    equal([server.getsockname(), client.getsockname(), client.getpeername()], names)
    client.send(b"hello")
    data, peer = server.recvfrom(99)
    equal(data, b"hello")
    server.sendto(b"back", peer)
    equal(client.recv(99), b"back")


def udp_4() -> Case:
    return udp(socket.AF_INET)


def udp_6() -> Case:
    return udp(socket.AF_INET6)


def node_address() -> Case:
    listener = socket.create_server((socket.gethostname(), 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    client.send(b"over the node's own address")
    host = socket.gethostname()
    yield
    equal(socket.gethostname(), host)
    # As the name leads to the address that it had, new sockets can be bound there.
    answers(socket.create_server((socket.gethostname(), 0)))
    equal(server.recv(99), b"over the node's own address")
    answers(listener)
