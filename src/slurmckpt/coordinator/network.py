"""The network of a restored pod whose image holds sockets bound to the old node's address.

Those sockets cannot be bound in the new node's network, so the pod gets a network namespace of its own with that
address on its loopback device: connections between its ranks are exact.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from slurmckpt.errors import SlurmckptError

log = logging.getLogger(__name__)

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class NetworkError(SlurmckptError):
    """The pod's network cannot be set up."""


def foreign(addresses: Iterable[str], proc: Path = Path("/proc/self")) -> list[str]:
    """Those addresses that are not this node's own."""
    own = _own_addresses(proc)
    return [address for address in addresses if ipaddress.ip_address(address) not in own]


async def isolate(enter: Path, pod_init: int, addresses: Iterable[str]) -> None:
    """Bring up loopback in the pod's own network namespace, with `addresses` on it. Raises NetworkError."""
    await _ip(enter, pod_init, "link", "set", "lo", "up")
    for address in addresses:
        prefix = ipaddress.ip_address(address).max_prefixlen
        await _ip(enter, pod_init, "address", "add", f"{address}/{prefix}", "dev", "lo")


async def _ip(enter: Path, pod_init: int, *words: str) -> None:
    ip = shutil.which("ip", path=_PATH)
    if ip is None:
        raise NetworkError(
            "the program ip (iproute2) is not installed; it is needed to give a restored pod its old address"
        )
    process = await asyncio.create_subprocess_exec(
        str(enter), "--pid", str(pod_init), "--", ip, *words,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={"PATH": _PATH},
    )  # fmt: skip
    _, complaint = await process.communicate()
    if process.returncode:
        raise NetworkError(f"ip {' '.join(words)} in the pod: {complaint.decode('utf-8', 'replace').strip()[:200]}")


def _own_addresses(proc: Path) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Every local address of this network namespace (proc(5)).

    The LOCAL leaves of the routing trie in /proc/net/fib_trie, and /proc/net/if_inet6.
    """
    own: set[ipaddress.IPv4Address | ipaddress.IPv6Address] = set()
    previous = ""
    for line in (proc / "net/fib_trie").read_text(encoding="ascii").splitlines():
        if line.strip() == "/32 host LOCAL":
            own.add(ipaddress.IPv4Address(previous.split()[-1]))
        previous = line
    try:
        for line in (proc / "net/if_inet6").read_text(encoding="ascii").splitlines():
            own.add(ipaddress.IPv6Address(bytes.fromhex(line.split()[0])))
    except FileNotFoundError:
        pass  # a kernel without IPv6
    return own
