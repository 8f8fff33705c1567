"""Sockets of every kind, each in a state of its own: sockets.py [NAME]...

Each case is a generator: what it does before its yield is done before the checkpoint, what follows is done after the
file `go` is there, and says whether everything is as it was.
"""

import array
import contextlib
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator

Case = Iterator[None]
BIG = os.urandom(1 << 16) * 256


def text(count: int) -> bytes:
    """`count` bytes that no shift leaves equal."""
    return b"".join(b"%d," % number for number in range(count))[:count]


def drain(one: socket.socket, count: int) -> bytes:
    """Exactly so many bytes, or what there is before the end."""
    data = b""
    while len(data) < count and (piece := one.recv(count - len(data))):
        data += piece
    return data


def fill(one: socket.socket) -> int:
    """Write until nothing more fits; how many bytes."""
    one.setblocking(False)
    sent = 0
    try:
        while True:
            sent += one.send(BIG[sent % len(BIG) :])
    except BlockingIOError:
        one.setblocking(True)
        return sent


def connected(
    family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM, address: object = None
) -> list[socket.socket]:
    """Listener, client and server end."""
    listener = socket.socket(family, kind)
    if address is None:
        address = ("::1" if family == socket.AF_INET6 else "127.0.0.1", 0)
    listener.bind(address)  # type: ignore[arg-type]
    listener.listen(3000)
    client = socket.socket(family, kind)
    client.connect(listener.getsockname())
    return [listener, client, listener.accept()[0]]


def equal(got: object, wanted: object) -> None:
    """Fail with both values."""
    if got != wanted:
        raise AssertionError(f"{str(got)[:200]!r} instead of {str(wanted)[:200]!r}")


def answers(listener: socket.socket) -> None:
    """A new connection is accepted and carries data both ways."""
    with socket.socket(listener.family, listener.type) as client:
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        with server:
            client.send(b"question")
            equal(server.recv(100), b"question")
            server.send(b"answer")
            equal(client.recv(100), b"answer")


def pair_of(kind: int) -> Case:
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    for number in range(100):
        one.send(text(number + 1))
        other.send(text(2 * number + 1))
    yield
    if kind == socket.SOCK_STREAM:
        equal(drain(other, 5050), b"".join(text(number + 1) for number in range(100)))
        equal(drain(one, 10000), b"".join(text(2 * number + 1) for number in range(100)))
    else:
        equal([other.recv(999) for _ in range(100)], [text(number + 1) for number in range(100)])
        equal([one.recv(999) for _ in range(100)], [text(2 * number + 1) for number in range(100)])
    one.send(b"more")
    equal(other.recv(9), b"more")


def unix_pair_stream() -> Case:
    return pair_of(socket.SOCK_STREAM)


def unix_pair_datagram() -> Case:
    return pair_of(socket.SOCK_DGRAM)


def unix_pair_seqpacket() -> Case:
    return pair_of(socket.SOCK_SEQPACKET)


def unix_pair_in_two_processes() -> Case:
    one, other = socket.socketpair()
    if os.fork() == 0:
        one.close()
        while piece := other.recv(9999):
            other.sendall(piece.upper())
        os._exit(0)
    other.close()
    one.send(b"abc")
    equal(one.recv(9), b"ABC")
    yield
    one.send(b"def")
    equal(one.recv(9), b"DEF")
    one.close()
    equal(os.wait()[1], 0)


def unix_half_closed() -> Case:
    one, other = socket.socketpair()
    one.send(b"last")
    one.shutdown(socket.SHUT_WR)
    yield
    equal(drain(other, 9), b"last")
    other.send(b"answer")
    equal(one.recv(9), b"answer")


def unix_other_end_closed() -> Case:
    one, other = socket.socketpair()
    one.send(b"last words")
    one.close()
    yield
    equal(drain(other, 99), b"last words")


def unix_abstract_listener() -> Case:
    listener, client, server = connected(socket.AF_UNIX, address=f"\0sockets-{os.getpid()}")
    client.send(b"to the server")
    server.send(b"to the client")
    yield
    equal(listener.getsockname(), f"\0sockets-{os.getpid()}".encode())
    equal(server.recv(99), b"to the server")
    equal(client.recv(99), b"to the client")
    answers(listener)


def unix_abstract_waiting() -> Case:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0waiting-{os.getpid()}")
    listener.listen(10)
    clients = [socket.socket(socket.AF_UNIX) for _ in range(5)]
    for client in clients:
        client.connect(listener.getsockname())
    yield
    for client in clients:
        server, _ = listener.accept()
        client.send(b"late")
        equal(server.recv(9), b"late")


def unix_abstract_datagrams() -> Case:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    server.bind(f"\0datagrams-{os.getpid()}")
    client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    client.connect(server.getsockname())
    client.send(b"one")
    client.send(b"two")
    yield
    client.send(b"three")
    equal([server.recv(9) for _ in range(3)], [b"one", b"two", b"three"])


def unix_bound_listener() -> Case:
    os.makedirs("own", exist_ok=True)
    path = os.path.abspath("own/listener")
    listener, client, server = connected(socket.AF_UNIX, address=path)
    os.chmod(path, 0o640)
    client.send(b"to the server")
    server.send(b"to the client")
    yield
    equal(listener.getsockname(), path)
    equal(oct(os.stat(path).st_mode), oct(0o140640))
    equal(os.stat(path).st_uid, os.getuid())
    equal(server.recv(99), b"to the server")
    equal(client.recv(99), b"to the client")
    answers(listener)
    os.unlink(path)


def unix_bound_relative() -> Case:
    os.makedirs("own", exist_ok=True)
    os.chdir("own")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("relative")
    listener.listen(5)
    os.chdir("..")
    yield
    equal(listener.getsockname(), "relative")
    os.chdir("own")
    answers(listener)
    os.unlink("relative")
    os.chdir("..")


def unix_bound_and_deleted() -> Case:
    os.makedirs("own", exist_ok=True)
    path = os.path.abspath("own/deleted")
    listener, client, server = connected(socket.AF_UNIX, address=path)
    os.unlink(path)
    client.send(b"still")
    yield
    equal(server.recv(9), b"still")
    equal(listener.getsockname(), path)
    equal(os.path.exists(path), False)


def unix_descriptors_in_flight() -> Case:
    one, other = socket.socketpair()
    reading, writing = os.pipe()
    os.write(writing, b"in the pipe")
    inner, far = socket.socketpair()
    far.send(b"in the socket")
    with open("in-flight", "w+") as file:
        file.write("in the file")
        file.seek(3)
        numbers = [reading, inner.fileno(), file.fileno()]
        os.lseek(file.fileno(), 3, os.SEEK_SET)
        one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers))])
    os.close(reading)
    inner.close()
    yield
    data, ancillary, _, _ = other.recvmsg(1, socket.CMSG_SPACE(3 * 4))
    equal(data, b"x")
    got = struct.unpack("3i", ancillary[0][2])
    equal(os.read(got[0], 99), b"in the pipe")
    equal(socket.socket(fileno=got[1]).recv(99), b"in the socket")
    equal(os.read(got[2], 99), b"the file")
    os.unlink("in-flight")


def who(one: socket.socket) -> tuple[int, int, int]:
    """Pid, user and group of the other end."""
    return struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))


def unix_who_listens() -> Case:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0who-{os.getpid()}")
    listener.listen(77)
    yield
    client = socket.socket(socket.AF_UNIX)
    client.connect(listener.getsockname())
    equal(who(client), (os.getpid(), os.getuid(), os.getgid()))


def unix_who_is_connected() -> Case:
    ends = [*socket.socketpair(), *socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
    ends += connected(socket.AF_UNIX, address=f"\0connected-{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0late-{os.getpid()}")
    listener.listen(9)
    client = socket.socket(socket.AF_UNIX)
    client.connect(listener.getsockname())
    yield
    for one in [*ends, client, listener.accept()[0]]:
        equal(who(one), (os.getpid(), os.getuid(), os.getgid()))


def unix_who_is_in_another_process() -> Case:
    one, other = socket.socketpair()
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        # What others have made must not stay open here.
        for number in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, other.fileno(), tell}:
            with contextlib.suppress(OSError):
                os.close(number)
        while other.recv(1):
            os.write(tell, struct.pack("2i", *who(other)[1:]))
        os._exit(0)
    other.close()
    yield
    equal(who(one)[1:], (os.getuid(), os.getgid()))
    one.send(b"?")
    equal(struct.unpack("2i", os.read(told, 8)), (os.getuid(), os.getgid()))
    one.close()
    equal(os.waitpid(pid, 0)[1], 0)


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


CASES = {
    function.__name__: function
    for function in list(globals().values())
    if callable(function) and getattr(function, "__annotations__", None) == {"return": Case}
}


def main() -> None:
    """Run the cases."""
    names = sys.argv[1:] or [*CASES, *OPTIONS]
    cases = {name: options_of(name) if name in OPTIONS else CASES[name]() for name in names}
    for case in cases.values():
        next(case)
    print("ready", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.05)
    socket.setdefaulttimeout(10)
    for name, case in cases.items():
        try:
            next(case)
        except StopIteration:
            print(name, "ok", flush=True)
        except (OSError, AssertionError) as error:
            print(name, f"FAILED: {type(error).__name__}: {error}", flush=True)
    print("end", flush=True)


main()
