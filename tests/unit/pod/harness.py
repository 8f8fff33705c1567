"""A fake coordinator and a fake slurmstepd: they drive the real shim, pod-init, leader and enter over real sockets."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.unit.awaiting import PATIENCE, wait_until
from tests.unit.pod.payloads import payload_header

POD = Path(__file__).resolve().parents[3] / "pod"
UID = 4321
GID = 4322
GROUPS = (4322, 4400, 4401)
LEADER_PID = 100
HELD_SLOT = 2048
TASK_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "SLURM_JOB_ID": "77"}


def process_exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def status_field(pid: int, name: str) -> str:
    """One field of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    raise KeyError(name)


def children(pid: int) -> list[int]:
    """Pids, as seen here, of the children of any process on this machine, the oldest first."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(word) for word in text.split()]
    return []


def open_files(pid: int) -> dict[int, str]:
    """What the descriptors of a process refer to; those that it closes meanwhile are left out."""
    links = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links[int(path.name)] = os.readlink(path)
    return dict(sorted(links.items()))


def build(*targets: str) -> None:
    """Build the programs where they lie. Other workers do so at the same time: one after the other."""
    folder = os.open(POD, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # A program whose linking another make has begun exists and is newer than its sources, but cannot be run yet.
        fcntl.flock(folder, fcntl.LOCK_EX)
        built = subprocess.run(["make", "-C", str(POD), *targets], capture_output=True, text=True, check=False)
    finally:
        os.close(folder)
    assert built.returncode == 0, built.stderr


def build_variant(folder: Path, program: str, *definitions: str, libexec: Path | None = None) -> Path:
    """A program of the pod, built with other definitions ("NAME=VALUE") than the real one, or for another place."""
    flags = " ".join(f"-D{definition}" for definition in definitions)
    place = [] if libexec is None else [f"LIBEXEC={libexec}"]
    command = ["make", "-C", str(POD), f"BUILD={folder}", *place, f"{folder}/{program}"]
    subprocess.run(command, env={**os.environ, "CPPFLAGS": flags}, check=True, capture_output=True)
    return folder / program


def set_subreaper(enabled: bool) -> None:
    """Whether orphans of this process's children become its own: pid 1 of every pod, which has to be reaped."""
    pr_set_child_subreaper = 36
    assert ctypes.CDLL(None).prctl(pr_set_child_subreaper, int(enabled), 0, 0, 0) == 0


def has_capability(number: int) -> bool:
    return bool(int(status_field(os.getpid(), "CapEff"), 16) >> number & 1)


def inner_pid(pid: int) -> int:
    """The pid of a process in its own (innermost) PID namespace."""
    return int(status_field(pid, "NSpid").split()[-1])


@dataclasses.dataclass(frozen=True)
class Message:
    verb: str
    values: Mapping[str, str]
    fds: tuple[int, ...] = ()

    def number(self, key: str) -> int:
        return int(self.values[key])


def pack(verb: str, pairs: Iterable[tuple[str, object]] = ()) -> bytes:
    return b"".join(part.encode() + b"\0" for part in (verb, *(f"{key}={value}" for key, value in pairs)))


class Wire:
    """One end of a SOCK_SEQPACKET connection that speaks NUL-ended strings."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(PATIENCE)

    def send(self, verb: str, *pairs: tuple[str, object], fds: Sequence[int] = (), **values: object) -> None:
        self.send_bytes(pack(verb, (*pairs, *values.items())), fds)

    def send_bytes(self, data: bytes, fds: Sequence[int] = ()) -> None:
        socket.send_fds(self.sock, [data], list(fds))

    def receive(self) -> Message | None:
        """The next message, or None at the end of the connection."""
        try:
            data, fds, flags, _ = socket.recv_fds(self.sock, 1 << 18, 253)
        except ConnectionResetError:
            return self.receive()
        if not data:
            return None
        assert data.endswith(b"\0") and not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        for fd in fds:
            os.set_inheritable(fd, False)
        verb, *rest = data[:-1].decode().split("\0")
        return Message(verb, dict(line.split("=", 1) for line in rest), tuple(fds))

    def expect(self, verb: str) -> Message:
        message = self.receive()
        assert message is not None, f"{verb} was expected, the connection has ended"
        assert message.verb == verb, f"{verb} was expected, not {message}"
        return message

    def expect_end(self) -> None:
        message = self.receive()
        assert message is None, f"the end was expected, not {message}"

    def ready(self) -> bool:
        return bool(select.select([self.sock], [], [], 0)[0])

    def close(self) -> None:
        self.sock.close()


def _lifted(fd: int) -> int:
    lifted = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200)
    os.close(fd)
    return lifted


class Shim:
    """A task as slurmstepd starts it: the shim in front, as the user. `wire` is the coordinator's end of its socket."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] = TASK_ENV,
        cwd: Path | str = "/tmp",
        uid: int = UID,
        gid: int = GID,
        groups: Sequence[int] = GROUPS,
        stdin: Any = subprocess.DEVNULL,
        stdout: Any = subprocess.PIPE,
        stderr: Any = subprocess.PIPE,
        pass_fds: Sequence[int] = (),
        connection: int | None = None,
        before_exec: Callable[[], object] | None = None,
        before_drop: Callable[[], object] | None = None,
        **popen: Any,
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # far up, so that a test can arrange the task's own descriptors as it likes
        binary = _lifted(os.open(POD / "shim", os.O_RDONLY))
        theirs_fd = _lifted(theirs.detach())
        number = theirs_fd if connection is None else connection

        def become_user() -> None:
            if popen.get("close_fds") is False:
                for name in os.listdir("/proc/self/fd"):
                    with contextlib.suppress(OSError):
                        os.set_inheritable(int(name), int(name) in (0, 1, 2, binary, theirs_fd))
            if before_drop is not None:
                before_drop()
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            if before_exec is not None:
                before_exec()

        self.wire = Wire(ours)
        self.uid, self.gid, self.groups = uid, gid, groups
        self.pid_inside = 0
        self.fds: tuple[int, ...] = ()
        self.originals: tuple[int, ...] = ()
        self.held = -1
        self.process = subprocess.Popen(
            [f"/proc/self/fd/{binary}", "slurmckpt-shim", str(number), *argv],
            env=dict(env),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=() if popen.get("close_fds") is False else (binary, theirs_fd, *pass_fds),
            preexec_fn=become_user,
            **popen,
        )
        os.close(binary)
        os.close(theirs_fd)

    def start(self) -> None:
        """Takes the START message.

        fds: the payload and the task's descriptors, as pod init gets them; held: the memory of the held output;
        originals: for each relayed stream the pipe that the task would have had.
        """
        message = self.wire.expect("START")
        assert message.values["v"] == "1"
        payload, self.held, *rest = message.fds
        count = len(payload_header(payload)["fds"].split(","))
        self.fds = (payload, *rest[:count])
        self.originals = tuple(rest[count:])

    def held_bytes(self, number: int) -> bytes:
        """What is held of the task's descriptor `number`, 1 or 2."""
        slot = os.pread(self.held, HELD_SLOT, HELD_SLOT * (number - 1))
        (size,) = struct.unpack_from("=I", slot)
        return slot[4 : 4 + size]

    def hold(self, number: int, data: bytes, size: int | None = None) -> None:
        """Writes that memory, as a coordinator does before RUN; size: what it shall state if not the right one."""
        os.pwrite(self.held, struct.pack("=I", len(data) if size is None else size) + data, HELD_SLOT * (number - 1))

    def close_fds(self) -> None:
        """The coordinator keeps none of them: the reader of the task's output would wait for its end forever."""
        for fd in (*self.fds, *self.originals):
            os.close(fd)
        self.fds = self.originals = ()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def finish(self) -> tuple[int, str, str]:
        """Waits for the end: (Popen's return code, stdout, stderr)."""
        self.close_fds()
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, (out or b"").decode(), err.decode()

    def close(self) -> None:
        self.close_fds()
        self.wire.close()
        if self.held >= 0:
            os.close(self.held)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Pod:
    """A pod-init and the coordinator's end of its control socket."""

    def __init__(self, shim_pid: int, *options: str, program: Path = POD / "pod-init", **popen: Any) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.wire = Wire(ours)
        self.pid = self.pid_max = 0
        self.pidfd = -1
        self.status_write = -1
        self.notes: list[Message] = []
        self.process = subprocess.Popen(
            [program, "--control", str(theirs.fileno()), "--shim-pid", str(shim_pid), *options],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            **popen,
        )
        theirs.close()

    def ready(self) -> None:
        message = self.wire.expect("READY")
        self.pid = message.number("pid")
        self.pid_max = message.number("pid_max")
        self.pidfd = os.pidfd_open(self.pid)
        (self.status_write,) = message.fds
        assert self.process.wait(PATIENCE) == 0

    def lead(
        self, shims: Sequence[Shim], *, deny: str = "io_uring", path: Path = POD / "leader", pid: int = LEADER_PID
    ) -> None:
        """LEADER, every TASK, GO and RUN, as a coordinator does for a fresh start; waits for all STARTED."""
        self.announce(shims, deny=deny, path=path, pid=pid)
        self.go(shims)

    def announce(
        self,
        shims: Sequence[Shim],
        *,
        deny: str = "io_uring",
        path: Path = POD / "leader",
        pid: int = LEADER_PID,
        cgroups: Mapping[int, Path] | None = None,
    ) -> None:
        """cgroups: by task, the file that it joins."""
        first = shims[0]
        groups = ",".join(str(group) for group in first.groups)
        user = (("uid", first.uid), ("gid", first.gid), ("groups", groups))
        self.wire.send("LEADER", *user, path=path, ntasks=len(shims), deny=deny, pid=pid)
        for index, shim in enumerate(shims):
            joined = (cgroups or {}).get(index)
            self.task(index, shim, *([("cgroup", joined)] if joined else []))

    def task(self, index: int, shim: Shim, *pairs: tuple[str, object]) -> None:
        self.wire.send("TASK", ("index", index), *pairs, fds=(shim.wire.sock.fileno(), *shim.fds))

    def go(self, shims: Sequence[Shim]) -> None:
        for shim in shims:
            with contextlib.suppress(BrokenPipeError):
                shim.wire.send("RUN")
        self.wire.send("GO")
        for _ in shims:
            message = self.expect("STARTED")
            shims[message.number("index")].pid_inside = message.number("pid")
        for shim in shims:
            # pod init holds the connection; while ours is open a shim would not see its end
            shim.wire.close()
            shim.close_fds()

    def expect(self, verb: str) -> Message:
        """The next message of this verb; others on the way are kept in self.notes."""
        while True:
            message = self.wire.receive()
            assert message is not None, f"{verb} was expected, pod init is gone; before: {self.notes}"
            if message.verb == verb:
                return message
            self.notes.append(message)

    def leader_pid(self) -> int:
        """The leader's pid as seen here."""
        wait_until(lambda: len(children(self.pid)) > 0, "the pod has a leader")
        return children(self.pid)[0]

    def outer_pid(self, inside: int) -> int:
        """The pid here of a descendant of the pod that has this pid inside."""
        waiting = [self.pid]
        while waiting:
            for child in children(waiting.pop()):
                if inner_pid(child) == inside:
                    return child
                waiting.append(child)
        raise AssertionError(f"no process {inside} in the pod")

    def wait_gone(self) -> None:
        assert select.select([self.pidfd], [], [], PATIENCE)[0], "pod init is still there"
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def close(self) -> None:
        self.wire.close()
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            self.wait_gone()
            os.close(self.pidfd)
            os.close(self.status_write)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


class FakeCoordinator:
    """Keeps what a test starts and ends all of it."""

    def __init__(self) -> None:
        self._open: list[Shim | Pod] = []
        set_subreaper(True)

    def shim(self, argv: Sequence[str], **options: Any) -> Shim:
        """A shim that has not been answered yet, START not yet taken."""
        shim = Shim(argv, **options)
        self._open.append(shim)
        return shim

    def started_shim(self, argv: Sequence[str], **options: Any) -> Shim:
        """A shim that waits for its answer."""
        shim = self.shim(argv, **options)
        shim.start()
        return shim

    def pod(self, shim: Shim, *options: str, **popen: Any) -> Pod:
        """A pod that is ready."""
        pod = Pod(shim.process.pid, *options, **popen)
        self._open.append(pod)
        pod.ready()
        return pod

    def unready_pod(self, shim_pid: int, *options: str, **popen: Any) -> Pod:
        pod = Pod(shim_pid, *options, **popen)
        self._open.append(pod)
        return pod

    def run(self, *commands: Sequence[str], pod_options: Sequence[str] = (), **options: Any) -> tuple[Pod, list[Shim]]:
        """Tasks with these commands, running in one pod."""
        shims = [self.started_shim(command, **options) for command in commands]
        pod = self.pod(shims[0], *pod_options)
        pod.lead(shims)
        return pod, shims

    def close(self) -> None:
        for item in reversed(self._open):
            item.close()
        # those that failed before they could tell their pid
        for pid in children(os.getpid()):
            if Path(f"/proc/{pid}/comm").read_text() == "pod-init\n":
                os.waitpid(pid, 0)
        set_subreaper(False)


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]
