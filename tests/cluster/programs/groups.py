"""Sockets that have joined multicast groups: groups.py. Sends to each now, and again when the file `go` is there.

The sandbox has neither a default route nor a router: each says on which interface.
"""

import os
import socket
import struct
import time

V4, V6 = "239.1.2.3", "ff12::1234"
address = socket.gethostbyname(socket.gethostname())
(index,) = (number for number, name in socket.if_nameindex() if name != "lo")


def datagrams(family: int) -> socket.socket:
    one = socket.socket(family, socket.SOCK_DGRAM)
    one.settimeout(10)
    return one


def source_membership(group: str, interface: str, source: str) -> bytes:
    """struct ip_mreq_source (ip(7))."""
    return b"".join(socket.inet_aton(text) for text in (group, interface, source))


four, six, filtered, other = (datagrams(family) for family in (socket.AF_INET, socket.AF_INET6, *[socket.AF_INET] * 2))
for one in (four, filtered, other):
    one.bind(("", 0))
six.bind(("::", 0))
four.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(V4) + socket.inet_aton(address))
six.setsockopt(
    socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, V6) + struct.pack("i", index)
)
# IP_ADD_SOURCE_MEMBERSHIP of the own address, IP_BLOCK_SOURCE of it
filtered.setsockopt(socket.IPPROTO_IP, 39, source_membership(V4, address, address))
other.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(V4) + socket.inet_aton(address))
other.setsockopt(socket.IPPROTO_IP, 38, source_membership(V4, address, address))
to_four, to_six = datagrams(socket.AF_INET), datagrams(socket.AF_INET6)
to_four.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
to_six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)


def tell() -> None:
    for one in (other, four, filtered):
        to_four.sendto(b"to four", (V4, one.getsockname()[1]))
    while True:
        try:
            to_six.sendto(b"to six", (V6, six.getsockname()[1]))
            break
        except OSError:
            # An interface of IPv6 takes a second until it has an address (RFC 4862).
            time.sleep(0.1)
    print(four.recv(99), filtered.recv(99), six.recv(99), flush=True)
    other.setblocking(False)
    try:
        print("from a blocked source:", other.recv(99), flush=True)
    except BlockingIOError:
        print("nothing", flush=True)


tell()
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
tell()
