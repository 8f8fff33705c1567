"""One real srun of the batch script. It runs outside the pod, under a launcher that outlives a coordinator that dies.

The launcher is its parent: it passes on the signals that the stand-in got, and hands its wait status to the stand-in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurmckpt.coordinator import payload as payloads
from slurmckpt.coordinator import proc
from slurmckpt.coordinator.payload import Payload
from slurmckpt.coordinator.proc import parent_of
from slurmckpt.coordinator.wire import Channel, WireError
from slurmckpt.errors import SlurmckptError

log = logging.getLogger(__name__)

_START_SECONDS = 30


class LaunchError(SlurmckptError):
    """The real srun could not be started."""


@dataclass(frozen=True)
class Surroundings:
    """Where sruns run: in the context of the batch task's shim, as its user, with the job's /dev/shm (shm).

    program: the real srun. notes: directory for what an epilog needs that finds no coordinator.
    """

    launcher: Path
    notes: Path
    program: Path
    shm: Path
    shim_pid: int
    cgroups: Sequence[Path]
    uid: int
    gid: int
    groups: Sequence[int]


@dataclass(frozen=True)
class Pipes:
    """The two pipes between a stand-in and its launcher. Keys are CRIU's; they name the pipes in an image."""

    signals_read: int
    signals_write: int
    status_read: int
    status_write: int

    @classmethod
    def new(cls) -> Pipes:
        """Two new ones."""
        signals = os.pipe2(os.O_CLOEXEC)
        try:
            return cls(*signals, *os.pipe2(os.O_CLOEXEC))
        except OSError:
            for descriptor in signals:
                os.close(descriptor)
            raise

    @property
    def signal_key(self) -> str:
        """CRIU's key of the pipe that carries signals."""
        return f"pipe:[{os.fstat(self.signals_write).st_ino}]"

    @property
    def status_key(self) -> str:
        """CRIU's key of the pipe that carries the wait status."""
        return f"pipe:[{os.fstat(self.status_read).st_ino}]"

    def close(self) -> None:
        """Give our ends up."""
        for descriptor in (self.signals_read, self.signals_write, self.status_read, self.status_write):
            os.close(descriptor)


@dataclass
class Launch:
    """One srun. number: counts the sruns of the script. pid: of srun on this node.

    payload: as the stand-in gave it. modes: st_mode of the descriptors 0, 1 and 2 that it has. step: name of the step
    that it brought, once that has announced itself; slurm_step: Slurm's name of it. outside: why that step does not run
    in a pod. renamed: the node that its command line names, where this one is meant. status: raw wait status, once it
    has ended. killed: we have ended it, so its step must not begin.
    """

    number: int
    payload: Payload
    modes: Mapping[int, int]
    signal_key: str
    status_key: str
    stand_in: int = 0
    pid: int = 0
    step: str = ""
    slurm_step: str = ""
    outside: str = ""
    renamed: str = ""
    status: int | None = None
    killed: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _pidfd: int = -1
    _note: Path | None = None
    _launcher: asyncio.subprocess.Process | None = None
    _listening: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether another process of the script reads what it prints, or the script feeds its standard input.

        Such a step is bound to the script's own progress: it cannot go on while the script runs again from its top.
        """
        outputs = [self.modes.get(number, 0) for number in (1, 2)]
        unread = all(stat.S_ISREG(mode) or stat.S_ISCHR(mode) for mode in outputs)
        return not unread or not stat.S_ISCHR(self.modes.get(0, 0))

    @property
    def is_fed(self) -> bool:
        """Whether its standard input is a file or a pipe, which it passes on to its step."""
        source = self.modes.get(0, 0)
        return stat.S_ISREG(source) or stat.S_ISFIFO(source)

    @property
    def pipes_inside(self) -> list[int]:
        """Which of its standard streams are pipes: their other ends are in the pod."""
        return [number for number, mode in self.modes.items() if stat.S_ISFIFO(mode)]

    async def start(
        self, surroundings: Surroundings, payload: Payload, pipes: Pipes, descriptors: Sequence[int]
    ) -> None:
        """Run srun. payload: as it is to be started here. descriptors: in the order of the payload's `fds=`.

        Everything given stays the caller's.

        Raises LaunchError: then nothing of it runs.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel = Channel(ours)
        process: asyncio.subprocess.Process | None = None
        handed = -1
        try:
            process = await _spawn(surroundings, theirs)
            theirs.close()
            handed = payloads.to_memfd(payload)
            await channel.send("LAUNCH", [], [pipes.signals_read, pipes.status_write, handed, *descriptors])
            answer = await asyncio.wait_for(channel.receive(), _START_SECONDS)
            if answer is None or answer.verb != "STARTED":
                failed = answer is not None and answer.verb == "FAILED"
                reason = answer.text("reason") if answer is not None and failed else "the launcher ended without a word"
                raise LaunchError(f"srun cannot be started: {reason}")
            self._meet(answer.number("pid"), process.pid)
            self._write_note(surroundings.notes)
        except BaseException as error:
            channel.close()
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            self._forget()
            self.ended.set()
            if isinstance(error, (OSError, WireError, asyncio.TimeoutError)):
                raise LaunchError(f"srun cannot be started: {str(error) or 'no answer'}") from error
            raise
        finally:
            theirs.close()
            if handed >= 0:
                os.close(handed)
        self._launcher = process
        self._listening = asyncio.create_task(self._listen(channel, process))

    def kill(self) -> None:
        """End it at once, and its launcher: that runs as the user, who may have stopped it."""
        self.killed = True
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if self._launcher is not None:
            with contextlib.suppress(ProcessLookupError):
                self._launcher.kill()

    def _meet(self, pid: int, launcher: int) -> None:
        """Get hold of srun. It may have ended by now, and its pid may be that of another process."""
        self.pid = pid
        with contextlib.suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(pid)
            if parent_of(pid) != launcher:
                os.close(self._pidfd)
                self._pidfd = -1

    async def _listen(self, channel: Channel, process: asyncio.subprocess.Process) -> None:
        # Whose launcher was killed has lost its srun, too (PR_SET_PDEATHSIG).
        status: int = signal.SIGKILL
        try:
            message = await channel.receive()
            if message is not None and message.verb == "EXITED":
                status = message.number("status")
        except (WireError, ConnectionError) as error:
            log.error("launcher of srun %d: %s", self.pid, error)
        finally:
            channel.close()
        await process.wait()
        self.status = status
        self._forget()
        self.ended.set()

    def _write_note(self, directory: Path) -> None:
        """For an epilog that finds no coordinator (see Pod)."""
        self._note = directory / f"launch-{self.number}.pid"
        # It may have ended already. And it runs: without a note Slurm ends it with the job.
        with contextlib.suppress(OSError):
            directory.mkdir(mode=0o700, exist_ok=True)
            proc.note(self._note, self.pid)

    def _forget(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        if self._note is not None:
            with contextlib.suppress(OSError):
                self._note.unlink()


def modes_of(numbers: Sequence[int], descriptors: Sequence[int]) -> dict[int, int]:
    """st_mode of those of a launch's descriptors that are its standard streams."""
    given = dict(zip(numbers, descriptors, strict=True))
    return {number: os.fstat(given[number]).st_mode for number in (0, 1, 2) if number in given}


async def _spawn(surroundings: Surroundings, control: socket.socket) -> asyncio.subprocess.Process:
    command = [str(surroundings.launcher), "--control", str(control.fileno())]
    command += ["--shim-pid", str(surroundings.shim_pid)]
    for path in surroundings.cgroups:
        command += ["--cgroup", str(path)]
    command += ["--uid", str(surroundings.uid), "--gid", str(surroundings.gid)]
    command += ["--groups", ",".join(str(group) for group in surroundings.groups)]
    command += ["--shm", str(surroundings.shm), "--program", str(surroundings.program)]
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[control.fileno()],
        start_new_session=True,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
