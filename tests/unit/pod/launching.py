"""A stand-in for srun and a launcher, and the coordinator between them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.unit.awaiting import PATIENCE, wait_until
from tests.unit.pod.harness import GID, GROUPS, POD, TASK_ENV, UID, Message, Wire, open_files
from tests.unit.pod.payloads import memfd, payload_bytes


class Pipe:
    """Both ends of a pipe; what is taken is no longer closed here."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()

    def take_read(self) -> int:
        taken, self.read_end = self.read_end, -1
        return taken

    def take_write(self) -> int:
        taken, self.write_end = self.write_end, -1
        return taken

    def close(self) -> None:
        for fd in (self.take_read(), self.take_write()):
            if fd >= 0:
                os.close(fd)


def word(number: int) -> bytes:
    """As both pipes carry it: int32, native."""
    return struct.pack("=i", number)


def read_word(fd: int) -> int | None:
    """The next number of a pipe, or None at its end."""
    data = os.read(fd, 4)
    assert len(data) in (0, 4)
    return struct.unpack("=i", data)[0] if data else None


class StandIn:
    """The stand-in as a script starts it. `wire` is the coordinator's end of its connection, once it has come."""

    def __init__(
        self,
        program: Path,
        argv: Sequence[str] = ("srun", "-n", "2", "hostname"),
        *,
        env: Mapping[str, str] = TASK_ENV,
        stdin: Any = subprocess.DEVNULL,
        before_exec: Callable[[], object] | None = None,
        **popen: Any,
    ) -> None:
        def become_user() -> None:
            os.setgroups(GROUPS)
            os.setresgid(GID, GID, GID)
            os.setresuid(UID, UID, UID)
            if before_exec is not None:
                before_exec()

        self.wire: Wire | None = None
        self.message = Message("", {})
        self.signals, self.status = Pipe(), Pipe()
        self.process = subprocess.Popen(
            list(argv),
            executable=program,
            env=dict(env),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=become_user,
            **{"cwd": "/tmp", **popen},
        )

    def take(self, listening: socket.socket) -> Message:
        """Accepts its connection and takes LAUNCH."""
        self.wire = Wire(listening.accept()[0])
        self.message = self.wire.expect("LAUNCH")
        assert self.message.values == {"v": "1"}
        return self.message

    def answer(self, verb: str, *, fds: Sequence[int] = (), **values: object) -> None:
        assert self.wire is not None
        self.wire.send(verb, fds=fds, **values)

    def launched(self) -> None:
        """LAUNCHED, with its pipes; returns when it stands in."""
        self.answer("LAUNCHED", fds=(self.signals.write_end, self.status.read_end))
        os.close(self.signals.take_write())
        os.close(self.status.take_read())
        self.close_fds()
        wait_until(self.stands_in, "the stand-in waits")

    def stands_in(self) -> bool:
        with contextlib.suppress(OSError):
            return any("signalfd" in link for link in open_files(self.process.pid).values())
        return False

    def end(self, wait_status: int) -> None:
        os.write(self.status.write_end, word(wait_status))

    def finish(self) -> tuple[int, str, str]:
        self.close_fds()
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out.decode(), err.decode()

    def close_fds(self) -> None:
        """The coordinator keeps none of the descriptors that came."""
        for fd in self.message.fds:
            os.close(fd)
        self.message = Message(self.message.verb, self.message.values)

    def close(self) -> None:
        self.close_fds()
        self.signals.close()
        self.status.close()
        if self.wire is not None:
            self.wire.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Launcher:
    """A launcher and the coordinator's end of its control socket; `program` becomes what it runs as srun."""

    def __init__(self, shim_pid: int, *options: str, program: Path | str = "/bin/sh") -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.wire = Wire(ours)
        self.signals, self.status, self.output, self.errors = Pipe(), Pipe(), Pipe(), Pipe()
        self.srun = 0
        command = [str(POD / "launcher"), "--control", str(theirs.fileno()), "--shim-pid", str(shim_pid)]
        identity = ["--uid", str(UID), "--gid", str(GID), "--groups", ",".join(map(str, GROUPS))]
        self.process = subprocess.Popen(
            [*command, *identity, "--program", str(program), *options],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        theirs.close()

    def launch(self, payload: int, fds: Sequence[int]) -> None:
        """LAUNCH; what went along is closed here."""
        self.wire.send("LAUNCH", fds=(self.signals.read_end, self.status.write_end, payload, *fds))
        os.close(self.signals.take_read())
        os.close(self.status.take_write())
        for fd in {payload, *fds}:
            os.close(fd)

    def send(self, argv: Sequence[str], extra: Mapping[str, str] | None = None, **payload: Any) -> None:
        """LAUNCH with a payload of these, its output into pipes of ours."""
        null = os.open("/dev/null", os.O_RDONLY)
        data = payload_bytes(argv, extra, **payload)
        self.launch(memfd(data), (null, self.output.take_write(), self.errors.take_write()))

    def start(self, argv: Sequence[str], extra: Mapping[str, str] | None = None, **payload: Any) -> None:
        self.send(argv, extra, **payload)
        self.started()

    def started(self) -> None:
        self.srun = self.wire.expect("STARTED").number("pid")

    def signal(self, number: int) -> None:
        os.write(self.signals.write_end, word(number))

    def finish(self) -> tuple[int, str, str]:
        """Waits for the end: (raw wait status as the stand-in gets it, stdout, stderr); EXITED must say the same."""
        wait_status = read_word(self.status.read_end)
        assert wait_status is not None
        out, err = (self._all(pipe) for pipe in (self.output, self.errors))
        assert self.wire.expect("EXITED").values == {"status": str(wait_status)}
        self.wire.expect_end()
        assert self.process.wait(PATIENCE) == 0
        return wait_status, out, err

    def failed(self) -> str:
        """The reason of FAILED, after which it ends."""
        reason = self.wire.expect("FAILED").values["reason"]
        self.wire.expect_end()
        assert self.process.wait(PATIENCE) == 1
        return reason

    @staticmethod
    def _all(pipe: Pipe) -> str:
        with os.fdopen(pipe.take_read()) as stream:
            return stream.read()

    def close(self) -> None:
        self.wire.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()
        for pipe in (self.signals, self.status, self.output, self.errors):
            pipe.close()
        if self.srun:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.srun, signal.SIGKILL)
