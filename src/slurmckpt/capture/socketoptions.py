"""Options of internet sockets that CRIU does not carry (setsockopt(2), tcp(7), ip(7), ipv6(7), socket(7)).

Each option of each socket is noted while nothing moves, and set before the ranks run where the restored socket has
another value. What the kernel does not know, or does not give, is left out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from slurmckpt.capture import procfs
from slurmckpt.capture.processes import Process, pod_processes

log = logging.getLogger(__name__)

FILE = "socket-options.json"
# Level and number: uapi/asm-generic/socket.h, uapi/linux/tcp.h, in.h, in6.h. Those that CRIU carries are not here.
_TCP = {"USER_TIMEOUT": 18, "DEFER_ACCEPT": 9, "SYNCNT": 7, "LINGER2": 8, "NOTSENT_LOWAT": 25, "INQ": 36}
_IP = {"MTU_DISCOVER": 10, "RECVERR": 11, "RECVTTL": 12, "RECVTOS": 13, "MULTICAST_TTL": 33, "MULTICAST_LOOP": 34}
_IPV6 = {
    "UNICAST_HOPS": 16, "MULTICAST_HOPS": 18, "MULTICAST_LOOP": 19, "MTU_DISCOVER": 23, "RECVERR": 25,
    "RECVHOPLIMIT": 51, "DONTFRAG": 62, "RECVTCLASS": 66, "TCLASS": 67,
}  # fmt: skip
_SOCKET = {"TIMESTAMP": 29, "TIMESTAMPNS": 35, "RXQ_OVFL": 40, "ZEROCOPY": 60}
_TCP_CONGESTION, _NAME_BYTES = 13, 16

Options = dict[str, int | str]


def save(processes: Iterable[Process], images: Path) -> None:
    """Note beside the images what the sockets of these processes have; nothing without any. Raises OSError."""
    found = {key: _read(one) for key, one in _sockets(processes)}
    if found:
        with open(os.open(images / FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            json.dump(found, file)


def apply(init_pid: int, images: Path) -> None:
    """Give to the sockets of a pod what those of these images had. init_pid: on this node.

    Raises OSError when the note cannot be read, SlurmckptError when the pod is gone.
    """
    try:
        note: dict[str, Options] = json.loads((images / FILE).read_text(encoding="ascii"))
    except FileNotFoundError:
        return
    for key, one in _sockets(pod_processes(init_pid)):
        now = _read(one)
        for option, value in note.get(key, {}).items():
            if now.get(option) != value:
                _set(key, one, option, value)


def _sockets(processes: Iterable[Process]) -> Iterator[tuple[str, socket.socket]]:
    """The internet sockets, each once and open for a moment: `PID/FD` inside the pod."""
    seen: set[str] = set()
    for process in processes:
        directory = f"{procfs.PROC}/{process.pid}/fd"
        for number in procfs.names(directory):
            target = procfs.link(f"{directory}/{number}") or ""
            if not target.startswith("socket:") or target in seen:
                continue
            seen.add(target)
            with contextlib.suppress(OSError), _borrowed(process.pid, int(number)) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6):
                    yield f"{process.ns_pid}/{number}", one


@contextlib.contextmanager
def _borrowed(pid: int, number: int) -> Iterator[socket.socket]:
    pidfd = os.pidfd_open(pid)
    try:
        descriptor = procfs.borrow_descriptor(pidfd, number)
    finally:
        os.close(pidfd)
    with socket.socket(fileno=descriptor) as one:
        yield one


def _read(one: socket.socket) -> Options:
    found: Options = {}
    for level, numbers in _levels(one):
        for number in numbers:
            with contextlib.suppress(OSError):
                found[f"{level}/{number}"] = one.getsockopt(level, number)
    with contextlib.suppress(OSError):
        if one.type == socket.SOCK_STREAM:
            name = one.getsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, _NAME_BYTES)
            found[f"{int(socket.IPPROTO_TCP)}/{_TCP_CONGESTION}"] = name.split(b"\0", 1)[0].decode("ascii")
    return found


def _levels(one: socket.socket) -> Iterator[tuple[int, Iterable[int]]]:
    yield int(socket.SOL_SOCKET), _SOCKET.values()
    yield int(socket.IPPROTO_IP), _IP.values()
    if one.family == socket.AF_INET6:
        yield int(socket.IPPROTO_IPV6), _IPV6.values()
    if one.type == socket.SOCK_STREAM:
        yield int(socket.IPPROTO_TCP), _TCP.values()


def _set(key: str, one: socket.socket, option: str, value: int | str) -> None:
    level, number = map(int, option.split("/"))
    try:
        one.setsockopt(level, number, value.encode("ascii") if isinstance(value, str) else value)
    except OSError as error:
        log.warning("option %s of the socket %s cannot be set to %s as it was: %s", option, key, value, error.strerror)
