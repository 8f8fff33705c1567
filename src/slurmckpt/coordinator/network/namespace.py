"""A network namespace for a pod, owned by a user namespace, so that pasta can serve it without any privilege here.

Whoever opens a tap device in a network namespace needs CAP_NET_ADMIN in the user namespace that owns it. Had root made
it, that would be a capability over the whole node. So it belongs to a user namespace in which one user is known: the
job's, as its root. Root made that, so the job's user is not its owner and has no power over the pod's network.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import select
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from slurmckpt.errors import SlurmckptError

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_SECONDS = 10.0
_LOST_AFTER_MS = 5


class NetworkError(SlurmckptError):
    """The pod's network cannot be set up."""


class Namespace:
    """A network namespace and the user namespace that owns it. close() gives it up: what is in it keeps it."""

    def __init__(self, holder: subprocess.Popen[bytes]) -> None:
        self._holder = holder

    @classmethod
    async def create(cls, uid: int, gid: int) -> Namespace:
        """Make both; in the user namespace root is `uid`, `gid`. Raises NetworkError (no user namespaces here, say)."""
        return await asyncio.to_thread(cls._create, uid, gid)

    @classmethod
    def _create(cls, uid: int, gid: int) -> Namespace:
        users = _hold("unshare", "--user")
        try:
            # The kernel takes a map once, and only root can write one for somebody else (user_namespaces(7)).
            for name, number in (("uid_map", uid), ("gid_map", gid)):
                Path(f"/proc/{users.pid}/{name}").write_text(f"0 {number} 1\n", encoding="ascii")
            return cls(_hold("nsenter", f"--user=/proc/{users.pid}/ns/user", "--", "unshare", "--net"))
        except OSError as error:
            raise NetworkError(f"the pod's user namespace cannot be set up: {error.strerror}") from error
        finally:
            _let_go(users)

    @property
    def network(self) -> str:
        """The network namespace, as a path."""
        return f"/proc/{self._holder.pid}/ns/net"

    @property
    def users(self) -> str:
        """The user namespace, as a path."""
        return f"/proc/{self._holder.pid}/ns/user"

    @property
    def holder(self) -> int:
        """The process that keeps both until close()."""
        return self._holder.pid

    def close(self) -> None:
        """Give it up. May be called again."""
        if self._holder.returncode is None:
            _let_go(self._holder)


async def isolate(enter: Path, pod_init: int, addresses: Sequence[str]) -> None:
    """Bring up loopback in the pod's own network namespace, with `addresses` on it. Raises NetworkError.

    Until the pod has its way out, loopback is also where everything else would go, and is dropped there: without any
    route CRIU could not bring back the sockets that are connected to the outside.
    """
    commands = ["link set lo up"]
    commands += [f"address add {_whole(address)} dev lo" for address in addresses]
    commands += [f"route add {route} dev lo" for route in _everywhere(addresses)]
    await _ip(enter, pod_init, commands)


async def cut_off(enter: Path, pod_init: int, addresses: Sequence[str]) -> None:
    """Nothing leaves the pod, and new connections to the outside fail at once. Raises NetworkError."""
    await _ip(enter, pod_init, [f"route delete {route} dev lo" for route in _everywhere(addresses)])


async def steady(enter: Path, pod_init: int, gateways: Sequence[str]) -> None:
    """Let the pod send much by these gateways of pasta's. Raises NetworkError.

    pasta drops what the socket behind it has no room for, and says nothing (docs/performance.md). So a lost segment is
    missed after 5 ms, not after 200, by a congestion control that every kernel has and that takes a loss for one: it
    rules the way to pasta only, the socket behind it has the node's.
    """
    options = f"rto_min {_LOST_AFTER_MS}ms congctl reno"
    await _ip(enter, pod_init, [f"route change default via {one} {options}" for one in gateways])


def _whole(address: str) -> str:
    """The prefix that is this address alone."""
    return f"{address}/{ipaddress.ip_address(address).max_prefixlen}"


def _everywhere(addresses: Iterable[str]) -> list[str]:
    """The default route of each family among the addresses."""
    versions = sorted({ipaddress.ip_address(address).version for address in addresses})
    return ["0.0.0.0/0" if version == 4 else "::/0" for version in versions]


async def _ip(enter: Path, pod_init: int, commands: Sequence[str]) -> None:
    ip = shutil.which("ip", path=PATH)
    if ip is None:
        raise NetworkError(
            "the program ip (iproute2) is not installed; it is needed to give a restored pod its old address"
        )
    process = await asyncio.create_subprocess_exec(
        str(enter), "--pid", str(pod_init), "--", ip, "-batch", "-",
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={"PATH": PATH},
    )  # fmt: skip
    _, complaint = await process.communicate("".join(f"{command}\n" for command in commands).encode("ascii"))
    if process.returncode:
        said = complaint.decode("utf-8", "replace").strip()[:200]
        raise NetworkError(f"ip in the pod ({'; '.join(commands)}): {said}")


def _hold(*command: str) -> subprocess.Popen[bytes]:
    """A process in the namespaces that `command` makes. It ends with us at the latest: it reads what we never write.

    Raises NetworkError.
    """
    try:
        process = subprocess.Popen(
            [*command, "--", "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={"PATH": PATH}, cwd="/", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise NetworkError(f"{command[0]} cannot be executed: {error.strerror}") from error
    assert process.stdout is not None and process.stderr is not None
    try:
        if not select.select([process.stdout], [], [], _SECONDS)[0]:
            raise NetworkError(f"{command[0]} does not answer")
        if process.stdout.readline() != b"\n":
            complaint = process.stderr.read().decode("utf-8", "replace").strip()
            raise NetworkError(complaint[:200] or f"{command[0]} ended without a word")
        return process
    except BaseException:
        _let_go(process)
        raise


def _let_go(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    # With that it closes our ends of its pipes, and waits for what is dead already.
    process.communicate()


def same_namespace(one: str, other: str) -> bool:
    """Whether two paths lead to the same namespace. False when one of them is gone."""
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False
