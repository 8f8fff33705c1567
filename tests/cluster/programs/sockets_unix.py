"""Cases of sockets.py: unix sockets."""

import array
import contextlib
import os
import socket
import struct

from sockets_common import Case, answers, connected, drain, equal, text  # type: ignore[import-not-found]


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
