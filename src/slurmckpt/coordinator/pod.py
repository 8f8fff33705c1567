"""One pod: its pod init, the tasks in it, and what is known of their ends. The pod outlives a coordinator that dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurmckpt.coordinator import pod_init, proc
from slurmckpt.coordinator.answers import Answers
from slurmckpt.coordinator.cgroups import procs_files
from slurmckpt.coordinator.first_pid import first_pid
from slurmckpt.coordinator.pod_init import Network, PodError, PodSettings, Wanted
from slurmckpt.coordinator.task import Task
from slurmckpt.coordinator.wire import Channel, Message, WireError

log = logging.getLogger(__name__)

_SYNC_SECONDS = 10
_KILL_SECONDS = 120  # until the kernel has taken back the memory of all ranks
_STOPS = frozenset({signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
# Longer than any suspend_grace_time; after it the tasks were stopped by the user's own wish, and may be captured so.
_STOPPING_SECONDS = 300.0


@dataclass
class TaskState:
    """A task of the pod. pid: inside the pod, 0 until it has started. status: raw wait status once it has ended."""

    gtask: int
    keys: dict[int, str]
    pid: int = 0
    status: int | None = None


@dataclass(frozen=True)
class Held:
    """What pod init holds until it is told to pass it. index: the task. signal: its number, or 0 for the task's exit.

    status: raw wait status of an exit.
    """

    index: int
    signal: int = 0
    status: int = 0


@dataclass
class Pod:
    """The namespaces in which the tasks of one step run on this node. at_end: what to do when they are gone.

    binds: what is mounted where in its mount namespace, in order.
    on_held: told of each exit and signal that pod init holds; see hold(). exits: held now, task to raw wait status.
    delivered: task to the signals that Slurm has sent it since it was started or restored.
    anchor: leads to the process that pod init becomes a child of; without it, it stands outside Slurm's process tree.
    hostname: what its processes see as the name of their host, where that is not the node's; set before build().
    place: of its first pid (first_pid.place). pid_max: the first number that is too high for a pid there. last_pid: as
    sync() found it, the last pid that was given there; 0 when it is not known.
    """

    step: str
    uid: int
    gid: int
    groups: Sequence[int]
    settings: PodSettings
    init_pid: int = 0
    pidfd: int = -1
    leader_pid: int = 0
    status_pipe: int = -1
    status_key: str = ""
    cgroups: list[Path] = field(default_factory=list)
    tasks: dict[int, TaskState] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    at_end: list[Callable[[], None]] = field(default_factory=list)
    binds: Sequence[tuple[Path, Path]] = ()
    on_held: Callable[[Held], None] | None = None
    exits: dict[int, int] = field(default_factory=dict)
    delivered: dict[int, set[int]] = field(default_factory=dict)
    anchor: Channel | None = None
    hostname: str = ""
    place: int = 0
    pid_max: int = 0
    last_pid: int = 0
    _channel: Channel | None = None
    _answers: Answers = field(default_factory=Answers)
    _reader: asyncio.Task[None] | None = None
    _burial: asyncio.Task[None] | None = None
    _stop_signal_at: float | None = None

    @property
    def running(self) -> bool:
        """Whether a task of this pod still runs."""
        return not self.ended.is_set() and any(task.status is None for task in self.tasks.values())

    @property
    def signalled(self) -> set[int]:
        """The signals that reached any of its tasks from outside."""
        return set[int]().union(*self.delivered.values())

    @property
    def stopping(self) -> bool:
        """Whether its tasks got a signal that stops them, and none since that lets them go on.

        Slurm is suspending the step then. An image would hold stopped tasks, and nobody would ever wake them where it
        is restored.
        """
        return self._stop_signal_at is not None and time.monotonic() - self._stop_signal_at < _STOPPING_SECONDS

    async def build(self, shim_pid: int, network: Network) -> None:
        """Make the namespaces around the shim's own context. Raises PodError; nothing is left then.

        network: a new network namespace, that of the node, or the one that this descriptor stands for.
        """
        self.cgroups = procs_files(shim_pid)
        wanted = Wanted(self.step, shim_pid, self.settings, self.cgroups, self.binds, network, self.hostname)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = Channel(ours)
        process = None
        try:
            process = await pod_init.start(wanted, self.anchor, theirs)
            theirs.close()
            ready = await pod_init.ready(wanted, self._channel)
            self.init_pid, self.status_pipe, self.pid_max = ready.pid, ready.status_pipe, ready.pid_max
            self.pidfd = os.pidfd_open(self.init_pid)
            self.status_key = f"pipe:[{os.fstat(self.status_pipe).st_ino}]"
            if process is not None:
                await process.wait()
            self._note()
        except BaseException as error:
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(process.wait(), _SYNC_SECONDS)
            self.destroy()
            await self.gone()
            if isinstance(error, (OSError, WireError, asyncio.TimeoutError)):
                reason = str(error) or "no answer"
                raise PodError(f"the pod of step {self.step} cannot be built: {reason}") from error
            raise
        finally:
            theirs.close()
        self._reader = asyncio.create_task(self._read(self._channel))

    async def start(self, tasks: Sequence[Task]) -> None:
        """Start the tasks afresh. Their connections and descriptors go to the pod."""
        channel = self._connected()
        self.leader_pid = first_pid(self.place, self.pid_max)
        groups = ",".join(str(group) for group in self.groups)
        pairs: list[tuple[str, object]] = [
            ("path", self.settings.libexec / "leader"),
            ("uid", self.uid),
            ("gid", self.gid),
            ("groups", groups),
            ("ntasks", len(tasks)),
            ("pid", self.leader_pid),
        ]
        if self.settings.deny_io_uring:
            pairs.append(("deny", "io_uring"))
        await channel.send("LEADER", pairs)
        for index, task in enumerate(tasks):
            self.tasks[index] = TaskState(task.hello.gtask, dict(task.keys))
            own: list[tuple[str, object]] = []
            # A shim that has died meanwhile must not stop the others: pod init finds its end, and kills its task.
            with contextlib.suppress(OSError):
                own = [("cgroup", path) for path in procs_files(task.shim_pid)]
            with contextlib.suppress(ConnectionError):
                await task.channel.send("RUN")
            await channel.send(
                "TASK",
                [("index", index), *own],
                [task.channel.descriptor, task.payload, *task.descriptors.values()],
            )
            task.close()
        await channel.send("GO")

    async def continue_pids(self, last: int) -> None:
        """The next process of the pod gets a pid above `last`. Raises PodError."""
        await self._connected().send("LASTPID", [("pid", min(last, self.pid_max - 1))])
        await self.sync()

    async def adopt(self, leader_pid: int, tasks: Sequence[tuple[int, Task]]) -> None:
        """Hand the shims of restored tasks to pod init, and let it forward.

        tasks: by index, each with its pid inside the pod, or 0 when it had ended.
        """
        channel = self._connected()
        self.leader_pid = leader_pid
        await channel.send("ADOPT", [("leader", leader_pid)])
        for index, (pid, task) in enumerate(tasks):
            if pid:
                with contextlib.suppress(ConnectionError):
                    await task.channel.send("RUN")
                await channel.send("SHIM", [("index", index), ("pid", pid)], [task.channel.descriptor])
        await channel.send("GO")

    async def adopt_again(self, leader_pid: int, pids: Mapping[int, int]) -> None:
        """After kill_tasks(): restored tasks, by index with their pids inside the pod, go on behind their old shims."""
        channel = self._connected()
        self.leader_pid = leader_pid
        await channel.send("ADOPT", [("leader", leader_pid)])
        for index, pid in pids.items():
            await channel.send("SHIM", [("index", index), ("pid", pid)])
        await channel.send("GO")

    async def hold(self, exits: bool, signals: int, patience: float | None = None) -> None:
        """From now on hold ends of tasks with another status than 0, and these signals (bit n-1 for signal n).

        What is held is passed by itself after `patience` seconds (30 by default; counted from now for what is held
        already), or when the coordinator ends. Lost when the pod has ended.
        """
        pairs: list[tuple[str, object]] = [("exits", "yes" if exits else "no"), ("signals", f"{signals:x}")]
        if patience is not None:
            pairs.append(("patience", max(1, round(patience * 1000))))
        await self._tell("HOLD", pairs)

    async def pass_on(self, held: Held) -> None:
        """Let the shim have the exit, or the task the signal, that is held; nothing when it is held no more."""
        if not held.signal and held.index in self.exits:
            self.tasks[held.index].status = self.exits.pop(held.index)
        await self._tell("PASS", [("index", held.index), *([("n", held.signal)] if held.signal else [])])

    async def sync(self) -> None:
        """Return when every task end that has happened so far is known here. Raises PodError."""
        await self._ask("SYNC", "SYNCED", _SYNC_SECONDS)

    async def kill_tasks(self) -> None:
        """End every process of the pod but pod init. Ends that were held are forgotten. Raises PodError."""
        await self._ask("KILL", "KILLED", _KILL_SECONDS)
        self.exits.clear()
        self.delivered.clear()

    def reopen_status_pipe(self) -> None:
        """After close_status_pipe(): the write end again, from pod init, for a leader that is restored. Raises OSError.

        Raises PodError when pod init has it no more.
        """
        directory = f"/proc/{self.init_pid}/fd"
        for name in os.listdir(directory):
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(f"{directory}/{name}") == self.status_key:
                    self.close_status_pipe()
                    self.status_pipe = os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CLOEXEC)
                    return
        raise PodError(f"pod init of step {self.step} has no status pipe")

    async def say(self, text: str) -> None:
        """One line on the stderr of the first task that still runs; lost when none does.

        Returns when the task's shim has it, or pod init does not answer: the pod may be ended then.
        """
        if self._channel is not None and not self.ended.is_set():
            with contextlib.suppress(ConnectionError, PodError):
                await self._channel.send("SAY", [("text", text)])
                await self.sync()

    def destroy(self) -> None:
        """End the pod and everything in it at once."""
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self._finish()

    async def gone(self) -> None:
        """Wait until pod init, and with it every process of the pod, is gone. Any number of callers may wait."""
        if self._burial is None:
            if self.pidfd < 0:
                return
            self._burial = asyncio.create_task(self._bury())
        await asyncio.shield(self._burial)

    async def _bury(self) -> None:
        loop = asyncio.get_running_loop()
        dead: asyncio.Future[None] = loop.create_future()

        def ended() -> None:
            if not dead.done():
                dead.set_result(None)

        loop.add_reader(self.pidfd, ended)
        try:
            await dead
        finally:
            loop.remove_reader(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = -1
            with contextlib.suppress(OSError):
                self._note_path().unlink()
            for action in self.at_end:
                action()

    def close_status_pipe(self) -> None:
        """Give up our copy of the pipe's write end: the leader has its own."""
        if self.status_pipe >= 0:
            os.close(self.status_pipe)
            self.status_pipe = -1

    def _connected(self) -> Channel:
        if self._channel is None:
            raise PodError(f"the pod of step {self.step} has ended")
        return self._channel

    async def _tell(self, verb: str, pairs: Sequence[tuple[str, object]]) -> None:
        """A message that is lost when the pod has ended."""
        if self._channel is not None:
            with contextlib.suppress(ConnectionError):
                await self._channel.send(verb, pairs)

    async def _ask(self, verb: str, answer: str, seconds: float) -> None:
        try:
            with self._answers.expected(answer) as future:
                await self._connected().send(verb)
            await asyncio.wait_for(future, seconds)
        except (ConnectionError, asyncio.TimeoutError) as error:
            raise PodError(f"pod init of step {self.step} does not answer {verb}") from error

    async def _read(self, channel: Channel) -> None:
        try:
            while (message := await channel.receive()) is not None:
                self._take(message)
                message.close()
        except (WireError, ConnectionError) as error:
            log.error("pod init of step %s: %s", self.step, error)
        self._finish()

    def _take(self, message: Message) -> None:
        if message.verb in ("STARTED", "EXITED"):
            task = self.tasks.get(message.number("index"))
            if task is None:
                raise WireError(f"{message.verb} of task {message.text('index')}, which this pod does not have")
            if message.verb == "STARTED":
                task.pid = message.number("pid")
            elif ("held", "yes") in message.pairs:
                self._hold(Held(message.number("index"), status=message.number("status")))
            else:
                task.status = message.number("status")
        elif message.verb == "HELD":
            self._hold(Held(message.number("index"), message.number("n")))
        elif message.verb == "PASSED":
            # It was held for too long. Of a signal SIGNALLED follows.
            if (index := message.number("index")) in self.exits and all(key != "n" for key, _ in message.pairs):
                self.tasks[index].status = self.exits.pop(index)
        elif message.verb == "SIGNALLED":
            self._note_signal(message.number("index"), message.number("n"))
        elif message.verb == "FAILED":
            log.error("pod init of step %s: %s", self.step, message.text("reason"))
        elif self._answers.are_expected(message.verb):
            if any(key == "last_pid" for key, _ in message.pairs):
                self.last_pid = message.number("last_pid")
            self._answers.take(message.verb)

    def _hold(self, held: Held) -> None:
        if not held.signal:
            self.exits[held.index] = held.status
        if self.on_held is not None:
            self.on_held(held)

    def _note_signal(self, index: int, number: int) -> None:
        log.info("step %s: task %d gets signal %d", self.step, index, number)
        self.delivered.setdefault(index, set()).add(number)
        if number in _STOPS:
            self._stop_signal_at = time.monotonic()
        elif number == signal.SIGCONT:
            self._stop_signal_at = None

    def _finish(self) -> None:
        self.close_status_pipe()
        for index, status in self.exits.items():
            self.tasks[index].status = status
        self.exits.clear()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._answers.end(ConnectionError("pod init ended"))
        self.ended.set()

    def _note_path(self) -> Path:
        return self.settings.run / "pods" / f"{self.step}.pid"

    def _note(self) -> None:
        """For an epilog that finds no coordinator: which process to end."""
        path = self._note_path()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        proc.note(path, self.init_pid)
