"""Options of sockets of every kind: sets whatever can be set to another value, and tells what has changed when `go` is there.

Nothing here knows what an option means, so options of kernels to come are tried as well.
"""

import os
import socket
import struct
import time

NUMBERS = {
    socket.SOL_SOCKET: range(90),
    socket.IPPROTO_IP: range(1, 60),
    socket.IPPROTO_IPV6: range(1, 90),
    socket.IPPROTO_TCP: range(1, 50),
    socket.IPPROTO_UDP: range(1, 110),
    136: range(1, 20),  # UDPLITE
    270: range(1, 14),  # netlink
}
VALUES = [
    *(struct.pack("i", value) for value in (1, 2, 3, 5, 0, 10, 100, 1000, 5000, 100000, -1)),
    struct.pack("ll", 3, 0),
    struct.pack("ii", 1, 7),
]
# What changes by itself, or says nothing: SO_INCOMING_CPU, TCP_QUICKACK; and of a connection, the clamp of its window.
PASSING = {(socket.SOL_SOCKET, 49), (socket.IPPROTO_TCP, 12)}
OF_A_CONNECTION = {(socket.IPPROTO_TCP, 10)}
# SO_REUSEADDR, which means something for internet sockets only.
INTERNET = {(socket.SOL_SOCKET, 2)}


def connected(family: int, address: object) -> list[socket.socket]:
    listener = socket.socket(family)
    listener.bind(address)  # type: ignore[arg-type]
    listener.listen(10)
    client = socket.socket(family)
    client.connect(listener.getsockname())
    return [listener, client, listener.accept()[0]]


def make() -> dict[str, socket.socket]:
    """One of each kind, by name."""
    found: dict[str, socket.socket] = {}
    kinds: list[tuple[str, int, object]] = [
        ("tcp4", socket.AF_INET, ("127.0.0.1", 0)),
        ("tcp6", socket.AF_INET6, ("::1", 0)),
        ("unix", socket.AF_UNIX, f"\0options-{os.getpid()}"),
    ]
    for name, family, address in kinds:
        ends = zip(("listener", "client", "server"), connected(family, address), strict=True)
        found |= {f"{name} {what}": one for what, one in ends}
        found[f"{name} fresh"] = socket.socket(family)
    for name, family, address in (("udp4", socket.AF_INET, "127.0.0.1"), ("udp6", socket.AF_INET6, "::1")):
        found[f"{name} fresh"] = socket.socket(family, socket.SOCK_DGRAM)
        found[f"{name} bound"] = socket.socket(family, socket.SOCK_DGRAM)
        found[f"{name} bound"].bind((address, 0))
        found[f"{name} connected"] = socket.socket(family, socket.SOCK_DGRAM)
        found[f"{name} connected"].connect(found[f"{name} bound"].getsockname())
    for name, kind in (
        ("stream", socket.SOCK_STREAM),
        ("datagram", socket.SOCK_DGRAM),
        ("packet", socket.SOCK_SEQPACKET),
    ):
        found[f"{name} pair 1"], found[f"{name} pair 2"] = socket.socketpair(socket.AF_UNIX, kind)
    found["netlink"] = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    return found


def value(one: socket.socket, level: int, number: int) -> bytes | None:
    try:
        return one.getsockopt(level, number, 64)
    except OSError:
        return None


def is_changed(one: socket.socket, level: int, number: int) -> bool:
    before = value(one, level, number)
    for wanted in VALUES:
        try:
            one.setsockopt(level, number, wanted)
        except OSError:
            continue
        if value(one, level, number) != before:
            return True
    return False


def excepted(name: str, option: tuple[int, int]) -> bool:
    if option in OF_A_CONNECTION:
        return name.endswith(("client", "server"))
    return option in PASSING or (option in INTERNET and not name.startswith(("tcp", "udp")))


sockets = make()
held = [
    (name, level, number)
    for name, one in sockets.items()
    for level, numbers in NUMBERS.items()
    for number in numbers
    if is_changed(one, level, number) and not excepted(name, (level, number))
]
# Only now, as some change others.
before = {key: value(sockets[key[0]], *key[1:]) for key in held}
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
for key, wanted in before.items():
    if (now := value(sockets[key[0]], *key[1:])) != wanted:
        print(*key, "was", wanted and wanted.hex(), "is", now and now.hex())
print("held", len(held), flush=True)
