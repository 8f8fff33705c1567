"""The way out of a pod with a network of its own: pasta (package passt).

What it serves is what the pod would have had in the node's network: new TCP and UDP connections to anywhere, which
leave the node with the node's address and as the job's user. The node itself is reached by its address as from anywhere
else; its loopback is not. TCP ports on which the pod listens are reached through the node's address: those that the
kernel chooses at once, as srun needs it (slurmstepd connects to it within milliseconds), others within a second, as
pasta looks only so often which these are, unless they are taken on the node or among those from 32768 to 60999. A
pasta that cannot do both (Debian trixie's, of May 2025) does the first.

pasta lives in the coordinator's cgroups: in those of the step, slurmstepd would wait for its end. It does not need the
coordinator. It ends with the pod, or by the epilog's hand, which finds it by its note.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from slurmckpt.capture.inspect.sockdiag import in_network_namespace
from slurmckpt.coordinator import proc
from slurmckpt.coordinator.network.addresses import speaks_ipv6
from slurmckpt.coordinator.network.namespace import PATH, Namespace, NetworkError, same_namespace

_SECONDS = 10.0
_TRIES = 4
_TUN = "/dev/net/tun"
# The pod's end and pasta's end of the tap. Of their own, so that the node's address leads to the node and not to the
# pod itself. RFC 3927 (link-local) and RFC 4193 (a prefix made up for this).
_IPV4 = ("--address", "169.254.77.1", "--netmask", "30", "--gateway", "169.254.77.2")
_IPV6 = ("--address", "fd73:6c75:726d::1", "--gateway", "fd73:6c75:726d::2")
# TCP ports of the node that are the pod's from the start: those that the kernel gives to its programs. They lie above
# those that it gives to the node's own (ip_local_port_range).
_FIRST_PORT, _LAST_PORT, _PORTS = 61000, 65535, 256
_OPTIONS = (
    "--quiet", "--config-net", "--netns-only", "--no-netns-quit",
    "--map-host-loopback", "none",
    "--udp-ports", "none", "--tcp-ns", "none", "--udp-ns", "none",
)  # fmt: skip


class WayOut:
    """A running pasta. note: the file that names it for the epilog. lacks: what it cannot do, or an empty text."""

    def __init__(self, pidfd: int, note: Path, lacks: str) -> None:
        self.lacks = lacks
        self._pidfd = pidfd
        self._note = note

    def end(self) -> None:
        """End it. May be called again."""
        if self._pidfd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        self._pidfd = -1
        with contextlib.suppress(OSError):
            self._note.unlink()


def find(program: str) -> str:
    """The path of pasta. Raises NetworkError."""
    path = shutil.which(program, path=PATH)
    if path is None:
        raise NetworkError(f"{program} is not installed")
    try:
        open_to_users = os.stat(_TUN).st_mode & 0o006 == 0o006
    except OSError:
        open_to_users = False
    if not open_to_users:
        raise NetworkError(f"pasta, as the job's user, cannot open {_TUN}")
    return path


def gateways() -> list[str]:
    """Through which addresses the pod leaves by pasta: IPv4, and IPv6 where the node speaks it."""
    return [_IPV4[-1], _IPV6[-1]] if speaks_ipv6() else [_IPV4[-1]]


async def attach(program: str, namespace: Namespace, pod_init: int, note: Path) -> WayOut:
    """Start pasta for the pod. Raises NetworkError: the reason why there is no way out."""
    path = find(program)
    for last in (False,) * (_TRIES - 1) + (True,):
        ports = await asyncio.to_thread(_free_ports)
        await asyncio.to_thread(choose_ports, pod_init, ports)
        try:
            lacks = await _serve(path, namespace, ports)
            break
        except NetworkError:
            # Another restore on this node may have taken these ports meanwhile.
            if last or await asyncio.to_thread(_are_free, ports):
                raise
    pidfd = await asyncio.to_thread(_found, program, namespace, note)
    return WayOut(pidfd, note, lacks)


async def _serve(path: str, namespace: Namespace, ports: range) -> str:
    """Start pasta with all that it can do; gives what it cannot, or an empty text. Raises NetworkError."""
    families = (*_IPV4, *_IPV6) if speaks_ipv6() else ("--ipv4-only", *_IPV4)
    block = f"{ports.start}-{ports.stop - 1}"
    options = [*_OPTIONS, *families, "--tcp-ports", block]
    try:
        await _run(path, namespace, [*options, "--tcp-ports", f"auto,~{block}"])
    except NetworkError as error:
        await _run(path, namespace, options)
        return f"a port on which a program listens is reached from outside only if the kernel has chosen it ({error})"
    return ""


async def _run(path: str, namespace: Namespace, options: Sequence[str]) -> None:
    """Start pasta and return once it serves. Raises NetworkError with its complaint."""
    program = os.path.basename(path)
    process = await asyncio.create_subprocess_exec(
        # As root of the user namespace, which is the job's user here: no capability over this node is left.
        "nsenter", f"--user={namespace.users}", "--", path, *options, "--netns", namespace.network,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={"PATH": PATH}, cwd="/", start_new_session=True,
    )  # fmt: skip
    try:
        # It goes into the background once it serves.
        _, complaint = await asyncio.wait_for(process.communicate(), _SECONDS)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        if isinstance(error, asyncio.TimeoutError):
            raise NetworkError(f"{program} does not answer") from error
        raise
    if process.returncode:
        said = complaint.decode("utf-8", "replace").strip().splitlines()
        raise NetworkError(f"{program}: {said[-1][:200] if said else 'it failed without a word'}")


def choose_ports(pod_init: int, ports: range) -> None:
    """Let the kernel take the ports that a program of the pod leaves to it (ip(7)) from these. Raises OSError."""
    # /proc/sys/net shows the network namespace of who opens it.
    setting = Path("/proc/sys/net/ipv4/ip_local_port_range")
    in_network_namespace(pod_init, lambda: setting.write_text(f"{ports.start} {ports.stop - 1}\n", encoding="ascii"))


def _free_ports() -> range:
    """A block of TCP ports that nobody uses on this node, any of them: others choose now, too. Raises NetworkError."""
    blocks = [range(first, first + _PORTS) for first in range(_FIRST_PORT, _LAST_PORT - _PORTS + 2, _PORTS)]
    for block in random.sample(blocks, len(blocks)):
        if _are_free(block):
            return block
    raise NetworkError(f"no {_PORTS} ports from {_FIRST_PORT} on are free")


def _are_free(ports: range) -> bool:
    try:
        with contextlib.ExitStack() as stack:
            for port in ports:
                one = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                one.bind(("", port))
    except OSError:
        return False
    return True


def _found(program: str, namespace: Namespace, note: Path) -> int:
    """A pidfd of the pasta that serves the namespace: beside the holder, nobody else is in its user namespace.

    Writes the note. Raises NetworkError.
    """
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == namespace.holder or not _is_in(int(name), namespace):
            continue
        try:
            pidfd = os.pidfd_open(int(name))
        except OSError:
            continue
        # Again: between the two looks the pid may have become another process, and that is the one we hold.
        if _is_in(int(name), namespace):
            proc.note(note, int(name))
            return pidfd
        os.close(pidfd)
    raise NetworkError(f"{program} has ended")


def _is_in(pid: int, namespace: Namespace) -> bool:
    return same_namespace(f"/proc/{pid}/ns/user", namespace.users)
