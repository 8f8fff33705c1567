"""One task: what the plugin said of it, what its shim handed over, and the connection to that shim."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from slurmckpt.coordinator import held, payload
from slurmckpt.coordinator.wire import Channel, Message, WireError

BATCH_STEP = 0xFFFFFFFB
_LAUNCH = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True)
class Hello:
    """What the plugin, as root, says of a task (trusted). task: local task id; ntasks: of this step on this node.

    launch: number of the srun that brought it, when the batch script started that through our stand-in (the number has
    come through the user's environment). off: the task runs outside of any pod, as its user wishes.
    """

    job: int
    step: int
    task: int
    gtask: int
    ntasks: int
    nnodes: int
    uid: int
    gid: int
    launch: int | None = None
    off: bool = False

    @property
    def step_name(self) -> str:
        """`batch` or the step's number."""
        return "batch" if self.step == BATCH_STEP else str(self.step)


@dataclass
class Task:
    """A task whose shim waits for an answer.

    Owns the connection, the payload and the dups of the task's descriptors until hand-over. keys: descriptor number of
    the task to CRIU's external key. argv_digest: of the command, for matching steps between incarnations. held: the
    memory in which the shim holds back incomplete lines. relays: stream number to the pipe that the shim relays it to.
    program: argv[0].
    """

    hello: Hello
    shim_pid: int
    channel: Channel
    payload: int
    held: int
    descriptors: dict[int, int]
    relays: dict[int, int]
    argv_digest: str
    command: str
    program: str = ""
    keys: dict[int, str] = field(default_factory=dict)

    async def say(self, text: str) -> None:
        """One line on the task's stderr."""
        await self.channel.send("SAY", [("text", text)])

    async def run_directly(self) -> None:
        """Fail open: the shim executes the task itself."""
        try:
            await self.channel.send("DIRECT")
        finally:
            self.close()

    def close(self) -> None:
        """Give up what the coordinator holds of this task."""
        self.channel.close()
        for descriptor in [self.payload, self.held, *self.descriptors.values(), *self.relays.values()]:
            if descriptor >= 0:
                os.close(descriptor)
        self.payload = self.held = -1
        self.descriptors = {}
        self.relays = {}


def parse_hello(message: Message) -> Hello:
    """The plugin's first message. Raises WireError."""
    if message.verb != "HELLO":
        raise WireError(f"{message.verb} where HELLO is expected")
    if message.number("v") != 1:
        raise WireError(
            f"a plugin of protocol {message.text('v')}; this coordinator speaks 1: install both from one release"
        )
    names = ("job", "step", "task", "gtask", "ntasks", "nnodes", "uid", "gid")
    given = dict(message.pairs)
    launch = given.get("launch", "")
    hello = Hello(
        **{name: message.number(name) for name in names},
        launch=int(launch) if _LAUNCH.fullmatch(launch) else None,
        off=given.get("off") == "1",
    )
    if not 0 <= hello.task < hello.ntasks:
        raise WireError(f"HELLO of task {hello.task} of {hello.ntasks}")
    return hello


def parse_start(hello: Hello, shim_pid: int, channel: Channel, message: Message) -> Task:
    """The shim's hand-over (untrusted). Raises WireError; the message's descriptors are taken or closed."""
    try:
        if message.verb != "START" or message.number("v") != 1 or len(message.descriptors) < 2:
            raise WireError(f"{message.verb} where START with descriptors is expected")
        descriptor, memory, *handed = message.descriptors
        found = payload.from_memfd(descriptor)
        held.check(memory)
        numbers, relayed = found.numbers("fds"), found.numbers("relays")
        if len(numbers) + len(relayed) != len(handed) or not set(relayed) <= set(held.STREAMS) & set(numbers):
            raise WireError(
                f"START with {len(handed)} descriptors for {len(numbers)} of the task and {len(relayed)} relays"
            )
        descriptors = dict(zip(numbers, handed, strict=False))
        task = Task(
            hello=hello,
            shim_pid=shim_pid,
            channel=channel,
            payload=descriptor,
            held=memory,
            descriptors=descriptors,
            relays=dict(zip(relayed, handed[len(numbers) :], strict=True)),
            argv_digest=_digest(found.header.get("cwd", ""), found.argv),
            command=found.command,
            program=os.fsdecode(found.argv[0]),
            keys={number: external_key(descriptor) for number, descriptor in descriptors.items()},
        )
    except BaseException:
        message.close()
        raise
    message.descriptors.clear()
    return task


def external_key(descriptor: int) -> str:
    """The name by which CRIU calls a descriptor that comes from outside the pod.

    `pipe:[INODE]`, `file[MNT_ID:INODE]` (hex) or `socket:[INODE]`. Source: file_desc names in CRIU's files.c, pipes.c
    and files-reg.c (`--inherit-fd`, `--external`).
    """
    status = os.fstat(descriptor)
    if stat.S_ISFIFO(status.st_mode):
        return f"pipe:[{status.st_ino}]"
    if stat.S_ISSOCK(status.st_mode):
        return f"socket:[{status.st_ino}]"
    for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "mnt_id":
            return f"file[{int(value):x}:{status.st_ino:x}]"
    raise WireError(f"descriptor {descriptor} has no mount id")


def _digest(directory: str, argv: list[bytes]) -> str:
    # The batch script lies in a spool directory whose path may hold the node's name: only its last part is compared.
    words = [directory.encode("utf-8", "surrogateescape"), os.path.basename(argv[0]), *argv[1:]]
    return hashlib.sha256(b"\0".join(words)).hexdigest()
