"""How a pod init is started: by the anchor of its step, in Slurm's process tree, or from here."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slurmckpt.coordinator.wire import Channel
from slurmckpt.errors import SlurmckptError

log = logging.getLogger(__name__)

Network = Literal["new", "keep"] | int
_BUILD_SECONDS = 30
# Numbers of the descriptors in a pod init that the anchor has started: pod/anchor.c.
_CONTROL = 11
_NETWORK = 12


class PodError(SlurmckptError):
    """The pod could not be built or does not answer."""


@dataclass(frozen=True)
class PodSettings:
    """libexec: directory of pod-init, leader, enter. shm: the job's /dev/shm. run: where the pod's pid is noted.

    signals_children: whether Slurm's signals to a step come to every process of it.
    """

    libexec: Path
    shm: Path
    run: Path
    deny_io_uring: bool
    signals_children: bool = False


@dataclass(frozen=True)
class Wanted:
    """A pod init that is wanted for the shim `shim_pid`. cgroups, binds: as of its pod.

    network: a new network namespace, that of the node, or the one that this descriptor stands for. hostname: one of its
    own, or an empty text.
    """

    step: str
    shim_pid: int
    settings: PodSettings
    cgroups: Sequence[Path]
    binds: Sequence[tuple[Path, Path]]
    network: Network
    hostname: str = ""

    @property
    def descriptors(self) -> list[int]:
        """What it gets beside its control socket."""
        return [self.network] if isinstance(self.network, int) else []

    def arguments(self, control: int, network: str | int) -> list[str]:
        """With the numbers that its descriptors have there."""
        words = ["--control", str(control), "--shim-pid", str(self.shim_pid), "--shm", str(self.settings.shm)]
        words += ["--net", str(network)]
        if self.hostname:
            words += ["--hostname", self.hostname]
        for path in self.cgroups:
            words += ["--cgroup", str(path)]
        for source, target in self.binds:
            words += ["--bind", f"{source}:{target}"]
        if self.settings.signals_children:
            words.append("--doubt-signals")
        return words


async def start(wanted: Wanted, anchor: Channel | None, control: socket.socket) -> asyncio.subprocess.Process | None:
    """Start it with its end of the control socket; the process when it is one of ours.

    Raises OSError. What becomes of it is said on the control socket, see ready().
    """
    if anchor is not None and await _ask_anchor(wanted, anchor, control):
        return None
    return await asyncio.create_subprocess_exec(
        str(wanted.settings.libexec / "pod-init"),
        *wanted.arguments(control.fileno(), wanted.network),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[control.fileno(), *wanted.descriptors],
        start_new_session=True,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )


async def _ask_anchor(wanted: Wanted, anchor: Channel, control: socket.socket) -> bool:
    """Whether it could be asked."""
    program = os.open(wanted.settings.libexec / "pod-init", os.O_RDONLY | os.O_CLOEXEC)
    try:
        words = wanted.arguments(_CONTROL, _NETWORK if wanted.descriptors else wanted.network)
        pairs: list[tuple[str, object]] = [("arg", word) for word in words]
        pairs += [("cgroup", path) for path in wanted.cgroups]
        await anchor.send("POD", pairs, [program, control.fileno(), *wanted.descriptors])
    except ConnectionError as error:
        log.warning("step %s: its anchor is gone (%s); its pod stands outside Slurm's tree", wanted.step, error)
        return False
    finally:
        os.close(program)
    return True


@dataclass(frozen=True)
class Ready:
    """What a pod init says of itself. pid: on this node. status_pipe: its write end.

    pid_max: the first number that is too high for a pid of the pod.
    """

    pid: int
    pid_max: int
    status_pipe: int


async def ready(wanted: Wanted, channel: Channel) -> Ready:
    """Its first word. Raises PodError, WireError, asyncio.TimeoutError."""
    answer = await asyncio.wait_for(channel.receive(), _BUILD_SECONDS)
    if answer is None or answer.verb != "READY" or len(answer.descriptors) != 1:
        failed = answer is not None and answer.verb == "FAILED"
        reason = answer.text("reason") if answer is not None and failed else "pod init ended without a word"
        raise PodError(f"the pod of step {wanted.step} cannot be built: {reason}")
    return Ready(answer.number("pid"), answer.number("pid_max"), answer.descriptors.pop())
