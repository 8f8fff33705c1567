"""Connections between the steps of a job: `server` in one, `client NAME ADDRESS` in others, until the file `go` exists.

Each client has four, of these kinds. busy: both ends send and read all the time. full: both have sent until nothing
more fitted, and nobody reads. half: the client has closed its sending side. idle: nothing is sent, and each end asks
every second whether the other is there. What comes is compared; at the end each prints how much it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
import threading
import time

CONTENT = hashlib.shake_256(b"crossing").digest((1 << 20) - 3)
KINDS = ("busy", "full", "half", "idle")
ANSWER = 300_000


def part(offset: int, size: int) -> bytes:
    start = offset % len(CONTENT)
    return (CONTENT[start:] + CONTENT * (size // len(CONTENT) + 1))[:size]


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def going() -> bool:
    return os.path.exists("go")


class End:
    def __init__(self, name: str, kind: str, connection: socket.socket) -> None:
        self.name, self.kind, self.socket = name, kind, connection
        self.sent = self.received = 0

    def send(self, data: bytes, flags: int = 0) -> None:
        self.sent += self.socket.send(data, flags)

    def send_all(self, size: int) -> None:
        until = self.sent + size
        while self.sent < until:
            self.send(part(self.sent, min(1 << 16, until - self.sent)))

    def receive(self, size: int = 1 << 16) -> bool:
        data = self.socket.recv(size)
        if data != part(self.received, len(data)):
            say(f"WRONG {self.name} {self.kind} at {self.received}: {len(data)}")
            os._exit(1)
        self.received += len(data)
        return bool(data)

    def read_to_end(self) -> None:
        while self.receive():
            pass

    def fill(self) -> None:
        quiet = time.monotonic() + 0.3
        while time.monotonic() < quiet:
            try:
                self.send(part(self.sent, 1 << 16), socket.MSG_DONTWAIT)
                quiet = time.monotonic() + 0.3
            except BlockingIOError:
                time.sleep(0.01)

    def busy(self) -> None:
        reader = threading.Thread(target=self.read_to_end)
        reader.start()
        count = 0
        while not going():
            count += 1
            self.send_all(1 + count * 7919 % 50_000)
            time.sleep(0.0005)
        self.socket.shutdown(socket.SHUT_WR)
        reader.join()

    def full(self) -> None:
        self.await_go()
        self.socket.shutdown(socket.SHUT_WR)
        self.read_to_end()

    def half(self, serves: bool) -> None:
        self.await_go()
        if serves:
            self.send_all(ANSWER)
            self.socket.close()
        else:
            self.read_to_end()

    def idle(self) -> None:
        self.await_go()
        self.send_all(1000)
        while self.received < 1000:
            self.receive(1000)

    def await_go(self) -> None:
        while not going():
            time.sleep(0.05)

    def prepare(self, serves: bool) -> None:
        if self.kind == "full":
            self.fill()
        elif self.kind == "half":
            if serves:
                self.read_to_end()
            else:
                self.send_all(5000)
                self.socket.shutdown(socket.SHUT_WR)
        elif self.kind == "idle":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
                self.socket.setsockopt(socket.IPPROTO_TCP, option, 1)

    def run(self, serves: bool, ready: threading.Semaphore) -> None:
        try:
            self.prepare(serves)
            ready.release()
            {"busy": self.busy, "full": self.full, "half": lambda: self.half(serves), "idle": self.idle}[self.kind]()
            say(f"{'server' if serves else 'client'} {self.name} {self.kind} {self.sent} {self.received}")
        except OSError as error:
            say(f"WRONG {self.name} {self.kind} {serves}: {error}")
            os._exit(1)


def serve(clients: int) -> None:
    ready = threading.Semaphore(0)
    threads = []
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=16) as listening:
        with open("port.new", "w") as file:
            file.write(str(listening.getsockname()[1]))
        os.rename("port.new", "port")
        for _ in range(clients * len(KINDS)):
            connection, _ = listening.accept()
            connection.send(b"\n")
            name, kind = connection.recv(32, socket.MSG_WAITALL).decode().split()
            threads.append(threading.Thread(target=End(name, kind, connection).run, args=(True, ready)))
            threads[-1].start()
        for _ in threads:
            ready.acquire()
        say("ready")
        for thread in threads:
            thread.join()


def connect(name: str, address: str) -> None:
    while not os.path.exists("port"):
        time.sleep(0.05)
    ready = threading.Semaphore(0)
    threads = []
    for kind in KINDS:
        with open("port") as file:
            connection = socket.create_connection((address, int(file.read())))
        connection.sendall(f"{name} {kind}".encode().ljust(32))
        connection.recv(1)
        threads.append(threading.Thread(target=End(name, kind, connection).run, args=(False, ready)))
        threads[-1].start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        if sys.argv[1] == "server":
            serve(int(sys.argv[2]))
        else:
            connect(sys.argv[2], socket.gethostname() if sys.argv[3] == "node" else sys.argv[3])
