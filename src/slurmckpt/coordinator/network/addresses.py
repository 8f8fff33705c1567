"""Which addresses are this node's own."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from pathlib import Path

_GLOBAL_SCOPE = "00"


def foreign(addresses: Iterable[str], proc: Path = Path("/proc/self")) -> list[str]:
    """Those addresses that are not this node's own."""
    own = _own_addresses(proc)
    return [address for address in addresses if ipaddress.ip_address(address) not in own]


def reachable(proc: Path = Path("/proc/self")) -> list[str]:
    """The addresses of this process's network by which others may know it: none of loopback, none of a link only."""
    own = _own_addresses(proc)
    kept = [one for one in own if not (one.is_loopback or one.is_link_local or one.is_unspecified)]
    return [str(one) for one in sorted(kept, key=lambda one: (one.version, int(one)))]


def speaks_ipv6(proc: Path = Path("/proc/self")) -> bool:
    """Whether this node has an IPv6 address with which it can be reached from elsewhere (global scope)."""
    return any(
        scope == _GLOBAL_SCOPE and not address.is_loopback and not address.is_link_local
        for address, scope in _ipv6_addresses(proc)
    )


def only_local_resolvers(configuration: Path = Path("/etc/resolv.conf")) -> bool:
    """Whether every name server of this node (resolv.conf(5)) is at a loopback address, which a pod cannot reach."""
    try:
        lines = configuration.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    servers = [words[1] for line in lines if len(words := line.split()) > 1 and words[0] == "nameserver"]
    return bool(servers) and all(_is_loopback(server) for server in servers)


def _is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False


def _own_addresses(proc: Path) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Every local address of this network namespace (proc(5)).

    The LOCAL leaves of the routing trie in /proc/net/fib_trie, and /proc/net/if_inet6.
    """
    own: set[ipaddress.IPv4Address | ipaddress.IPv6Address] = set()
    leaf = ""
    for line in (proc / "net/fib_trie").read_text(encoding="ascii").splitlines():
        if line.lstrip().startswith("|-- "):
            leaf = line.split()[-1]
        elif line.strip() == "/32 host LOCAL":
            # Once for each device that has it.
            own.add(ipaddress.IPv4Address(leaf))
    own.update(address for address, _ in _ipv6_addresses(proc))
    return own


def _ipv6_addresses(proc: Path) -> list[tuple[ipaddress.IPv6Address, str]]:
    """Address and scope (hex) of each line of /proc/net/if_inet6."""
    try:
        text = (proc / "net/if_inet6").read_text(encoding="ascii")
    except FileNotFoundError:
        return []  # a kernel without IPv6
    lines = (line.split() for line in text.splitlines())
    return [(ipaddress.IPv6Address(bytes.fromhex(words[0])), words[3]) for words in lines]
