"""A pod with a program that only speaks as pod init does."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path

from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.pod_init import PodSettings
from tests.unit.coordinator.parts import no_descriptor_is_lost

# Forks as pod init does: the first stage ends, the second serves. `heard` gets a line for each message.
PROGRAM = """\
#!{python}
import os, socket, sys
control = socket.socket(fileno=int(sys.argv[sys.argv.index("--control") + 1]))
def send(*words, descriptors=()):
    socket.send_fds(control, [b"".join(word.encode() + b"\\0" for word in words)], descriptors)
def serve(answer):
    reader, writer = os.pipe()
    if os.fork():
        os._exit(0)
    send("READY", f"pid={{os.getpid()}}", "pid_max=4194304", descriptors=[writer])
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 65536, 300)
        if not data:
            break
        words = data.decode().split("\\0")[:-1]
        with open({heard!r}, "a") as log:
            print(*words, len(descriptors), file=log)
        answer(words[0], words, descriptors)
def plain(verb, words, descriptors):
    if verb == "SYNC":
        send("SYNCED", "last_pid=777")
    if verb == "KILL":
        send("KILLED")
    if verb == "GO":
        send("STARTED", "index=0", "pid=101")
{body}
"""


class Node:
    """Where pods are built."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.heard_file = top / "heard"
        self.settings = PodSettings(top / "libexec", top / "shm", top / "run", True)
        self.settings.libexec.mkdir()
        self.settings.run.mkdir()

    def pod_init(self, body: str = "serve(plain)") -> None:
        program = self.settings.libexec / "pod-init"
        program.write_text(
            PROGRAM.format(python=sys.executable, heard=str(self.heard_file), body=textwrap.dedent(body))
        )
        program.chmod(0o755)

    def pod(self) -> Pod:
        return Pod("0", 1000, 100, [100, 27], self.settings)

    @property
    def heard(self) -> list[str]:
        return self.heard_file.read_text().splitlines() if self.heard_file.exists() else []

    @property
    def note(self) -> Path:
        return self.settings.run / "pods" / "0.pid"


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scene(), 60)

    with no_descriptor_is_lost():
        asyncio.run(bounded())


async def built(node: Node) -> Pod:
    pod = node.pod()
    await pod.build(os.getpid(), "keep")
    return pod


async def end(pod: Pod) -> None:
    pod.destroy()
    await pod.gone()
