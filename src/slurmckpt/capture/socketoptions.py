"""Options of sockets that CRIU does not carry (socket(7), tcp(7), ip(7), ipv6(7), udp(7), netlink(7)).

Each option of each socket is noted while nothing moves, and set before the ranks run where the restored socket has
another value. What the kernel does not know, or does not give, is left out. Values are bytes, as the kernel gives them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from slurmckpt.capture import heldsockets, notes
from slurmckpt.capture.processes import Process, pod_processes

log = logging.getLogger(__name__)

FILE = "socket-options.json"
# Level and number: uapi/asm-generic/socket.h, uapi/linux/tcp.h, in.h, in6.h, udp.h, netlink.h. Those that CRIU carries,
# and what only tells about a connection or passes by itself (TCP_QUICKACK), are not here.
_TCP = {
    "USER_TIMEOUT": 18, "DEFER_ACCEPT": 9, "SYNCNT": 7, "LINGER2": 8, "NOTSENT_LOWAT": 25, "INQ": 36, "CONGESTION": 13,
    "THIN_LINEAR_TIMEOUTS": 16, "FASTOPEN": 23, "SAVE_SYN": 27, "FASTOPEN_CONNECT": 30, "FASTOPEN_KEY": 33,
    "FASTOPEN_NO_COOKIE": 34, "TX_DELAY": 37, "RTO_MAX_MS": 44, "RTO_MIN_US": 45, "DELACK_MAX_US": 46,
}  # fmt: skip
# Of a connected socket these are the connection's, and CRIU's matter.
_TCP_UNCONNECTED = {"MAXSEG": 2, "WINDOW_CLAMP": 10}
_IP = {
    "TOS": 1, "TTL": 2, "OPTIONS": 4, "RECVOPTS": 6, "RETOPTS": 7, "PKTINFO": 8, "MTU_DISCOVER": 10, "RECVERR": 11,
    "RECVTTL": 12, "RECVTOS": 13, "PASSSEC": 18, "RECVORIGDSTADDR": 20, "MINTTL": 21, "NODEFRAG": 22, "CHECKSUM": 23,
    "BIND_ADDRESS_NO_PORT": 24, "RECVFRAGSIZE": 25, "RECVERR_RFC4884": 26, "MULTICAST_LOOP": 34,
    "MULTICAST_ALL": 49, "LOCAL_PORT_RANGE": 51,
}  # fmt: skip
_IPV6 = {
    "2292PKTINFO": 2, "2292HOPOPTS": 3, "2292DSTOPTS": 4, "2292RTHDR": 5, "2292HOPLIMIT": 8, "FLOWINFO": 11,
    "UNICAST_HOPS": 16, "MULTICAST_LOOP": 19, "MTU_DISCOVER": 23, "RECVERR": 25, "MULTICAST_ALL": 29,
    "ROUTER_ALERT_ISOLATE": 30, "RECVERR_RFC4884": 31, "FLOWINFO_SEND": 33, "RECVPKTINFO": 49,
    "RECVHOPLIMIT": 51, "RECVHOPOPTS": 53, "RECVRTHDR": 56, "RECVDSTOPTS": 58, "RECVPATHMTU": 60, "DONTFRAG": 62,
    "RECVTCLASS": 66, "TCLASS": 67, "AUTOFLOWLABEL": 70, "ADDR_PREFERENCES": 72, "MINHOPCOUNT": 73,
    "RECVORIGDSTADDR": 74, "RECVFRAGSIZE": 77,
}  # fmt: skip
# Nobody can set them for a stream; one that was accepted has other values all the same.
_IP_NO_STREAM, _IPV6_NO_STREAM = {"MULTICAST_TTL": 33}, {"MULTICAST_HOPS": 18}
_UDP = {"ENCAP": 100, "NO_CHECK6_TX": 101, "NO_CHECK6_RX": 102, "SEGMENT": 103, "GRO": 104}
_NETLINK = {
    "PKTINFO": 3, "BROADCAST_ERROR": 4, "NO_ENOBUFS": 5, "LISTEN_ALL_NSID": 8, "CAP_ACK": 10, "EXT_ACK": 11,
    "GET_STRICT_CHK": 12,
}  # fmt: skip
# LOCK_FILTER comes last: it is for ever.
_SOCKET = {
    "TIMESTAMP": 29, "TIMESTAMPNS": 35, "TIMESTAMPING": 37, "TIMESTAMP_NEW": 63, "TIMESTAMPNS_NEW": 64,
    "TIMESTAMPING_NEW": 65, "RXQ_OVFL": 40, "WIFI_STATUS": 41, "PEEK_OFF": 42, "NOFCS": 43, "SELECT_ERR_QUEUE": 45,
    "BUSY_POLL": 46, "MAX_PACING_RATE": 47, "ZEROCOPY": 60, "TXTIME": 61, "PREFER_BUSY_POLL": 69,
    "BUSY_POLL_BUDGET": 70, "TXREHASH": 74, "RCVMARK": 75, "PASSPIDFD": 76, "RCVPRIORITY": 82, "PASSRIGHTS": 83,
    "LOCK_FILTER": 44,
}  # fmt: skip
# linux/socket.h: levels that Python's socket module does not have
_SOL_NETLINK = 270
# net/tcp_states.h
_CLOSE, _LISTEN = 7, 10
_MAX_VALUE = 64

# By `LEVEL/NUMBER`, in hexadecimal digits.
Options = dict[str, str]


def save(processes: Iterable[Process], images: Path) -> None:
    """Note beside the images what the sockets of these processes have; nothing without any. Raises OSError."""
    found = {key: options for key, one in heldsockets.all_of(processes) if (options := _worth_noting(one))}
    if found:
        notes.save(images / FILE, found)


def apply(init_pid: int, images: Path) -> None:
    """Give to the sockets of a pod what those of these images had. init_pid: on this node.

    Raises OSError when the note cannot be read, SlurmckptError when the pod is gone.
    """
    note: dict[str, Options] | None = notes.load(images / FILE)
    if note is None:
        return
    for key, one in heldsockets.named(pod_processes(init_pid), note):
        now = _read(one)
        for option, value in note[key].items():
            if now.get(option) != value:
                _set(key, one, option, value)


def _worth_noting(one: socket.socket) -> Options:
    """All of an internet socket, as what is usual may differ between nodes; of others what is not usual."""
    found = _read(one)
    if one.family in (socket.AF_INET, socket.AF_INET6):
        return found
    usual = _usual(one.family, one.type, one.proto)
    return {option: value for option, value in found.items() if usual.get(option) != value}


@functools.cache
def _usual(family: int, kind: int, protocol: int) -> Options:
    try:
        with socket.socket(family, kind, protocol) as fresh:
            return _read(fresh)
    except OSError:
        return {}


def _read(one: socket.socket) -> Options:
    found: Options = {}
    for level, numbers in _levels(one):
        for number in numbers:
            with contextlib.suppress(OSError):
                found[f"{level}/{number}"] = one.getsockopt(level, number, _MAX_VALUE).hex()
    return found


def _levels(one: socket.socket) -> Iterator[tuple[int, Iterable[int]]]:
    if one.family in (socket.AF_INET, socket.AF_INET6):
        yield int(socket.IPPROTO_IP), _IP.values()
        if one.family == socket.AF_INET6:
            yield int(socket.IPPROTO_IPV6), _IPV6.values()
        if one.type == socket.SOCK_STREAM:
            yield int(socket.IPPROTO_TCP), _TCP.values()
            with contextlib.suppress(OSError):
                if one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in (_CLOSE, _LISTEN):
                    yield int(socket.IPPROTO_TCP), _TCP_UNCONNECTED.values()
        else:
            yield int(socket.IPPROTO_IP), _IP_NO_STREAM.values()
            if one.family == socket.AF_INET6:
                yield int(socket.IPPROTO_IPV6), _IPV6_NO_STREAM.values()
        if one.type == socket.SOCK_DGRAM:
            yield int(socket.IPPROTO_UDP), _UDP.values()
    elif one.family == socket.AF_NETLINK:
        yield _SOL_NETLINK, _NETLINK.values()
    yield int(socket.SOL_SOCKET), _SOCKET.values()


def _set(key: str, one: socket.socket, option: str, value: str) -> None:
    level, number = map(int, option.split("/"))
    try:
        one.setsockopt(level, number, bytes.fromhex(value))
    except OSError as error:
        log.warning("option %s of the socket %s cannot be set to %s as it was: %s", option, key, value, error.strerror)
