"""One step of the job on this node: its tasks as they arrive, then its pod."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from slurmckpt.coordinator.gpu_profile import Profile
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.proc import ended, parent_of
from slurmckpt.coordinator.script.launch import Launch
from slurmckpt.coordinator.scriptfile import NONE, ScriptFile
from slurmckpt.coordinator.streams import Streams
from slurmckpt.coordinator.task import Hello, Task
from slurmckpt.coordinator.wire import Channel, Message

log = logging.getLogger(__name__)

# slurmstepd lets all tasks of a step execute at the same moment; one that never comes died before that and must not
# hold up the others.
GATHER_SECONDS = 30.0


@dataclass
class StepNumbers:
    """Numbers the steps that the batch script starts, over all incarnations in which it goes on from where it was.

    Slurm's own step ids are no identity: they begin at 0 in each incarnation, and `srun --overlap` from outside takes
    some of them.
    """

    started: int = 0

    def name(self, hello: Hello) -> str:
        """The name of a step that has just announced itself."""
        if hello.step_name == "batch":
            return "batch"
        self.started += 1
        return str(self.started - 1)


@dataclass
class Step:
    """Everything the coordinator knows of one step. carrier: the step's slurmstepd, which carries its output onward.

    launch: the srun of the batch script that brought it; None when something else did. script_file: of the batch step,
    once it starts.
    interactive: one of its tasks has a terminal, and so none of them goes into a pod.
    profile: how its GPU ranks communicate. gpu_indices: which GPUs of the node it has; empty when that is not known.
    shim: of its first task. anchor: leads to the root process below the first task whose children the pods are
    (pod/anchor.c). empty_messages: what a cut has to remember for the next one (unixqueues.lost()).
    """

    name: str
    ntasks: int
    nnodes: int
    tasks: dict[int, Task] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False
    pod: Pod | None = None
    anchor: Channel | None = None
    streams: Streams = field(default_factory=Streams)
    argv_digest: str = ""
    command: str = ""
    script_file: ScriptFile = NONE
    shim: int = 0
    carrier: int = 0
    restored_from: int | None = None
    launch: Launch | None = None
    interactive: bool = False
    profile: Profile = field(default_factory=Profile)
    gpu_indices: tuple[int, ...] = ()
    empty_messages: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, hello: Hello, name: str, launch: Launch | None = None) -> Step:
        """The step that the first of its tasks announces. name: `batch`, or its number as StepNumbers counts."""
        return cls(name=name, ntasks=hello.ntasks, nnodes=hello.nnodes, launch=launch)

    def add(self, task: Task) -> None:
        """A task is ready to start."""
        self.tasks[task.hello.task] = task
        self._count()

    def take_anchor(self, hello: Message) -> None:
        """Keep the connection to the step's anchor, which comes with the HELLO of its first task."""
        if self.anchor is None and not self.closed and hello.descriptors:
            self.anchor = Channel(socket.socket(fileno=hello.descriptors.pop(0)))

    def let_anchor_go(self) -> None:
        """No pod will be made below it any more: it ends, with the pods that are there."""
        if self.anchor is not None:
            self.anchor.close()
            self.anchor = None

    def lose(self, index: int) -> None:
        """A task announced itself and ended before it was ready."""
        if index == 0 and index not in self.tasks:
            # It stands below that task, which becomes the user's program or is gone.
            self.let_anchor_go()
        if index not in self.tasks:
            self.gone.add(index)
            self._count()

    async def gather(self) -> list[Task]:
        """All tasks of this step, by local id, once they are ready; those that have not come in time are left out."""
        try:
            await asyncio.wait_for(self.complete.wait(), GATHER_SECONDS)
        except asyncio.TimeoutError:
            log.warning(
                "step %s: %d of %d tasks came within %.0f s", self.name, len(self.tasks), self.ntasks, GATHER_SECONDS
            )
        self.closed = True
        tasks = [self.tasks[index] for index in sorted(self.tasks)]
        if tasks:
            self.argv_digest = _digest([task.argv_digest for task in tasks])
            self.command = tasks[0].command
            self.shim = tasks[0].shim_pid
            self.carrier = parent_of(tasks[0].shim_pid)
        return tasks

    async def left(self) -> None:
        """Return when its slurmstepd has ended, or after a while: then Slurm has its resources back."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(ended(self.carrier), GATHER_SECONDS)

    @property
    def running(self) -> bool:
        """Whether its pod has a task that still runs."""
        return self.pod is not None and self.pod.running

    def _count(self) -> None:
        if len(self.tasks) + len(self.gone) >= self.ntasks:
            self.complete.set()


def _digest(digests: Sequence[str]) -> str:
    """One digest of the commands of all tasks, by local id: those of --multi-prog differ from task to task."""
    if len(set(digests)) == 1:
        return digests[0]
    return hashlib.sha256("\0".join(digests).encode("ascii")).hexdigest()
