"""A batch script's surroundings: a launcher (a double), an srun (a shell script), and what a stand-in hands over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

from slurmckpt.coordinator.payload import Payload
from slurmckpt.coordinator.script.launch import Launch, Pipes, Surroundings, modes_of
from slurmckpt.coordinator.script.marks import Marks
from slurmckpt.coordinator.script.script import Script
from tests.unit.coordinator.parts import no_descriptor_is_lost

DOUBLE = Path(__file__).with_name("launcher_double.py")
LAUNCHER = Path(__file__).resolve().parents[4] / "pod" / "launcher"
ENVIRONMENT = [b"PATH=/usr/bin:/bin", b"A=b"]
# An srun that runs until it is told to end, and says so.
RUNS = 'trap "exit 7" USR1; echo ready; while :; do sleep 0.02; done'


class World:
    """srun: what the real one does, as a shell script. manner: of its launcher; `real` for the program itself."""

    def __init__(self, top: Path, srun: str = "exit 0", manner: str = "good") -> None:
        self.top = top
        self.launcher, self.program, self.stand_in = top / "launcher", top / "real-srun", top / "srun"
        self.behave(manner)
        self.program.write_text(f"#!/bin/sh\n{srun}\n")
        self.program.chmod(0o755)
        self.notes = top / "pods"
        (top / "pod").mkdir()
        self.surroundings = Surroundings(
            launcher=self.launcher,
            notes=self.notes,
            program=self.program,
            shm=Path("/dev/shm"),
            shim_pid=os.getpid(),
            cgroups=[],
            uid=os.getuid(),
            gid=os.getgid(),
            groups=[4, 24],
        )
        self.script = Script(self.surroundings, self.stand_in, top / "pod", top / "target", {}, {}, Marks())

    def behave(self, manner: str) -> None:
        """From now on the launcher is of this manner."""
        if manner == "real":
            shutil.copy(LAUNCHER, self.launcher)
            return
        words = [sys.executable, "-S", "-E", str(DOUBLE), manner]
        self.launcher.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        self.launcher.chmod(0o755)

    async def start(self, launch: Launch, pipes: Pipes, given: Mapping[int, int]) -> None:
        await launch.start(
            self.surroundings, launch.payload.with_words(launch.payload.argv, ENVIRONMENT), pipes, list(given.values())
        )


def payload(numbers: Mapping[int, int] | list[int], environment: list[bytes] | None = None) -> Payload:
    """What a stand-in with these descriptors hands over."""
    header = {"v": "1", "cwd": "/", "umask": "0022", "fds": ",".join(map(str, numbers)), "relays": "", "nice": "0"}
    header |= {"affinity": "ffff", "sigign": "0", "sigmask": "0"}
    return Payload(header, [b"srun", b"./train.py"], ENVIRONMENT if environment is None else environment)


def launch_of(given: Mapping[int, int], pipes: Pipes, number: int = 0) -> Launch:
    modes = modes_of(list(given), list(given.values()))
    return Launch(number, payload(given), modes, pipes.signal_key, pipes.status_key)


@contextlib.contextmanager
def two_pipes() -> Iterator[Pipes]:
    """A launch's pipes, closed at the end as far as the test has not."""
    pipes = Pipes.new()
    try:
        yield pipes
    finally:
        for descriptor in (pipes.signals_read, pipes.signals_write, pipes.status_read, pipes.status_write):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def told(pipes: Pipes) -> int:
    """The wait status that a stand-in reads."""
    os.set_blocking(pipes.status_read, False)
    word = os.read(pipes.status_read, 4)
    return int(struct.unpack("=i", word)[0])


def signal_word(number: int) -> bytes:
    """A signal as a stand-in passes it on."""
    return struct.pack("=i", number)


def dead(pid: int) -> bool:
    """Whether a process has ended; who is its parent by now may not have asked for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def awaited() -> None:
        await asyncio.wait_for(scene(), 60)

    with no_descriptor_is_lost():
        asyncio.run(awaited())
