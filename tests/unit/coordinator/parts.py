"""What the tests of the coordinator build most: tasks as a shim hands them over, steps, images, and /proc trees."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurmckpt.coordinator import held
from slurmckpt.coordinator.doubts import Doubts
from slurmckpt.coordinator.payload import Payload
from slurmckpt.coordinator.proc import start_time
from slurmckpt.coordinator.script.launch import Launch
from slurmckpt.coordinator.task import Hello, Task
from slurmckpt.coordinator.wire import Channel, Message, pack
from slurmckpt.store.manifest import OpenFile, StepImage, TaskImage

NOBODY = 2**22 + 1  # the pid of no process: the kernel gives none above 2**22
UID, GID = 47110, 47111


def memfd(content: bytes) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    return descriptor


def payload(header: Mapping[str, object], argv: Sequence[bytes], environment: Sequence[bytes] = ()) -> int:
    """A payload as pod/payload.c writes it."""
    lines = [f"{key}={value}".encode() for key, value in header.items()]
    return memfd(b"".join(word + b"\0" for word in [*lines, b"", *argv, *environment]))


def good_payload(numbers: Sequence[int], argv: Sequence[bytes] = (b"/bin/true",), cwd: str = "/home/jane") -> int:
    header = {"v": 1, "argc": len(argv), "envc": 1, "cwd": cwd, "fds": ",".join(map(str, numbers))}
    return payload(header, argv, [b"A=b"])


def hello(step: int = 0, task: int = 0, ntasks: int = 1) -> Hello:
    return Hello(job=7, step=step, task=task, gtask=task, ntasks=ntasks, nnodes=1, uid=UID, gid=GID)


def channels() -> tuple[Channel, Channel]:
    """Two connected channels; to be called where an event loop runs."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(one), Channel(other)


def task(
    channel: Channel, descriptors: Mapping[int, int] | None = None, index: int = 0, ntasks: int = 1, step: int = 0
) -> Task:
    """A task that owns `descriptors`, and a payload and a memory of its own."""
    return Task(
        hello=hello(step=step, task=index, ntasks=ntasks),
        shim_pid=os.getpid(),
        channel=channel,
        payload=good_payload(list(descriptors or {})),
        held=memfd(bytes(held.SIZE)),
        descriptors=dict(descriptors or {}),
        relays={},
        argv_digest="d" * 64,
        command="/bin/true",
    )


def start(descriptors: Sequence[int]) -> Message:
    return Message("START", [("v", "1")], list(descriptors))


def image(
    tasks: Sequence[TaskImage] = (), open_files: Sequence[OpenFile] = (), step: str = "0", ntasks: int = 1
) -> StepImage:
    return StepImage(
        step=step,
        directory=step,
        leader_pid=100,
        status_pipe="pipe:[4711]",
        ntasks=ntasks,
        argv_digest="d" * 64,
        command="./train.py",
        uid=UID,
        gid=GID,
        tasks=list(tasks),
        addresses=[],
        open_files=list(open_files),
        criu_version="4.2.1",
        shm=False,
        hostname="n1",
    )


def launch(
    number: int = 0, source: int = stat.S_IFCHR, output: int = stat.S_IFREG, errors: int = stat.S_IFREG
) -> Launch:
    """An srun that prints into files and reads from /dev/null, unless told otherwise."""
    modes = {0: source | 0o600, 1: output | 0o600, 2: errors | 0o600}
    return Launch(number, Payload({}, [b"srun"], []), modes, f"pipe:[{number}1]", f"pipe:[{number}2]", pid=NOBODY)


def saved_task(index: int = 0, descriptors: Mapping[str, str] | None = None) -> TaskImage:
    return TaskImage(
        index=index, gtask=index, pid=101 + index, exited=False, status=0, descriptors=dict(descriptors or {})
    )


def without_doubts() -> Doubts:
    """So much time has passed that every refusal counts."""
    times = iter([0.0])
    return Doubts(lambda: next(times, math.inf))


@contextlib.contextmanager
def no_descriptor_is_lost() -> Iterator[None]:
    """The numbers of this process's descriptors are the same after as before."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before


def send_raw(sock: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(sock, [data], list(descriptors))


def packed(verb: str, **values: object) -> bytes:
    return pack(verb, values.items())


def proc_tree(top: Path, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> Path:
    """A tree that stands for /proc."""
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, target in (links or {}).items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    return top


def note(path: Path, pid: int, started: int | None = None) -> None:
    """Write a process down as the coordinator does. started: its start time, unless it is to be the right one."""
    path.write_text(f"{pid} {start_time(pid) if started is None else started}\n")
