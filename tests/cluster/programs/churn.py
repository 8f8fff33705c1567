"""Starts and ends processes and threads, and opens and closes what they have, all the time; a line for each round.

It ends when there is a file `go`. What a round does must come out right, or the program fails.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import socket
import subprocess
import tempfile
import threading

HANDS = 10


def hand_on(send: int) -> None:
    """Through processes that each leave it to a child of theirs."""
    for _ in range(HANDS):
        if os.fork():
            os._exit(0)
    os.write(send, b"x")
    os._exit(0)


def relay(receive: int, send: int) -> None:
    child = os.fork()
    if child == 0:
        os.close(receive)
        hand_on(send)
    os.close(send)
    assert os.read(receive, 1) == b"x"
    os.close(receive)
    os.waitpid(child, 0)


def pass_on() -> None:
    """A pipe in a message."""
    ours, theirs = socket.socketpair()
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        socket.send_fds(theirs, [b"x"], [receive])
        os.write(send, b"hello")
        os._exit(0)
    for number in (receive, send):
        os.close(number)
    theirs.close()
    _, (received,), _, _ = socket.recv_fds(ours, 1, 1)
    assert os.read(received, 5) == b"hello"
    os.close(received)
    ours.close()
    os.waitpid(child, 0)


def threads() -> None:
    some = [threading.Thread(target=bytearray, args=(2000,)) for _ in range(8)]
    for one in some:
        one.start()
    for one in some:
        one.join()


def programs() -> None:
    assert subprocess.run("echo hi | cat; true", shell=True, capture_output=True, check=True).stdout == b"hi\n"
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


def workers() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]


def files() -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", delete=False) as file:
        file.write(b"x" * 100)
        file.flush()
        with mmap.mmap(file.fileno(), 100) as memory:
            os.unlink(file.name)
            memory[:1] = b"y"
    with tempfile.TemporaryFile() as nameless:
        nameless.write(b"abc")


def connections() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as other,
    ):
        client.sendall(b"hi")
        assert other.recv(2) == b"hi"


def main() -> None:
    number = 0
    while not os.path.exists("go"):
        relay(*os.pipe())
        ours, theirs = socket.socketpair()
        relay(ours.detach(), theirs.detach())
        for each in (pass_on, threads, programs, workers, files, connections):
            each()
        print(number, flush=True)
        number += 1


main()
