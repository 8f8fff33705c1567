"""A task that dies of a signal, or with a listed exit code, while its job is healthy: all ranks go back, in place.

The end of a task is held by pod init until it is decided what becomes of it (docs/architecture.md, HOLD). What Slurm
or the user ends on purpose, and what could not get better by doing it again, is passed on at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from slurmckpt.coordinator.pod import Held, Pod
from slurmckpt.coordinator.pod_init import PodError
from slurmckpt.coordinator.recovery.in_place import InPlace, Lost
from slurmckpt.coordinator.recovery.oom import OomKills
from slurmckpt.coordinator.recovery.scene import Scene
from slurmckpt.coordinator.step import Step
from slurmckpt.errors import SlurmckptError

log = logging.getLogger(__name__)

# Of the 30 s for which pod init holds an end. What is left is for a last question to Slurm and for the kill.
_DECIDE_SECONDS = 18.0
# Ranks that end because another one has died may be noticed before it.
_COMPANY_SECONDS = 1.0
# By these Slurm and users end a task; how it ends then is its own business.
_ENDING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGKILL})


@dataclass(frozen=True)
class End:
    """A task that has ended and whose shim does not know it yet. status: raw wait status."""

    step: Step
    pod: Pod
    index: int
    status: int
    time: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return f"task {self.index} of step {self.step.name} {describe(self.status)}"


class Left(Exception):
    """This end is passed on. The message says why. aloud: in the job's own output, too."""

    def __init__(self, reason: str, aloud: bool = True) -> None:
        super().__init__(reason)
        self.aloud = aloud


@dataclass
class Attempts:
    """Restores in place of one incarnation, whatever they were for. seen: what for, and from which checkpoint."""

    allowed: int
    made: int = 0
    seen: set[tuple[int, str]] = field(default_factory=set)

    def check(self, what: str, seq: int) -> None:
        """Raises Left when there is to be no other one."""
        if (seq, what) in self.seen:
            raise Left(
                f"{what} again after a restore from #{seq} in place: this is the program's own failure, and is not"
                " recovered from"
            )
        if self.made >= self.allowed:
            raise Left(f"{what}: not recovered: recover.attempts = {self.allowed} allows no further restore in place")

    def count(self, what: str, seq: int) -> None:
        """One was made."""
        self.made += 1
        self.seen.add((seq, what))


class Crashes:
    """Decides about the ends that are held, one after the other."""

    def __init__(self, scene: Scene, in_place: InPlace, attempts: Attempts) -> None:
        self._scene = scene
        self._in_place = in_place
        self._attempts = attempts
        self._codes = scene.incarnation.settings.recover.exit_codes
        self._memory: dict[str, OomKills] = {}
        self._told: set[int] = set()
        self._ends: asyncio.Queue[End] = asyncio.Queue()

    def watch(self, step: Step) -> None:
        """A step has started. What is known of those that have ended is forgotten: a script may start very many."""
        running = {one.name for one in self._scene.steps.values() if one.pod and not one.pod.ended.is_set()}
        self._memory = {name: kills for name, kills in self._memory.items() if name in running}
        self._memory[step.name] = OomKills(task.shim_pid for task in step.tasks.values())

    def take(self, end: End) -> None:
        """An end is held."""
        self._ends.put_nowait(end)

    async def run(self) -> None:
        """Decide, until cancelled."""
        while True:
            ends = await self._collect()
            try:
                await self._decide(ends)
            except Exception:  # a fault of ours must not keep an end from Slurm
                log.exception("job %d", self._scene.job_id)
            while not self._ends.empty():
                ends.append(self._ends.get_nowait())
            for end in ends:
                # Of a task that was restored nothing is held any more.
                if end.index in end.pod.exits:
                    await end.pod.pass_on(Held(end.index, status=end.status))

    async def _collect(self) -> list[End]:
        """The next ends: up to a crash, when one comes soon enough to be their cause."""
        ends = [await self._ends.get()]
        deadline = time.monotonic() + _COMPANY_SECONDS
        while not any(is_crash(end.status, self._codes) for end in ends) and self._others_run():
            try:
                ends.append(await asyncio.wait_for(self._ends.get(), deadline - time.monotonic()))
            except asyncio.TimeoutError:
                break
        while not self._ends.empty():
            ends.append(self._ends.get_nowait())
        return ends

    def _others_run(self) -> bool:
        pods = [step.pod for step in self._scene.steps.values() if step.pod is not None]
        return any(
            task.status is None and index not in pod.exits
            for pod in pods
            if pod.running
            for index, task in pod.tasks.items()
        )

    async def _decide(self, ends: list[End]) -> None:
        crash = next((end for end in ends if is_crash(end.status, self._codes)), None)
        if crash is None or asked_for(crash.status, crash.pod.delivered.get(crash.index, set())):
            return
        try:
            await self._recover(crash)
        except Left as left:
            aloud = left.aloud and not self._is_known(crash)
            if aloud and os.WIFSIGNALED(crash.status):
                self._told.add(os.WTERMSIG(crash.status))
            await (self._scene.tell if aloud else self._scene.note)(str(left))
        except Lost:
            pass  # told by who lost them

    def _is_known(self, crash: End) -> bool:
        """Whether it is the script, which ends as the step of which that was told already: with 128 and the signal."""
        code = os.WEXITSTATUS(crash.status) if os.WIFEXITED(crash.status) else 0
        return crash.step.name == "batch" and code - 128 in self._told

    async def _recover(self, crash: End) -> None:
        """All ranks go back. Raises Left or Lost."""
        scene, what = self._scene, str(crash)
        newest = scene.checkpointer.newest
        if reason := await scene.unhealthy():
            raise Left(f"{what}: not recovered, as {reason}", aloud=False)
        # Where Slurm signals each process by itself (proctrack/linuxproc), a rank is dead before its shim hears of it.
        with contextlib.suppress(PodError):
            await crash.pod.sync()
        if asked_for(crash.status, crash.pod.delivered.get(crash.index, set())):
            return
        if newest is None:
            # Then the job ends to the letter as it would without us.
            raise Left(f"{what}: not recovered, as no checkpoint had been taken", aloud=False)
        kills = self._memory.get(crash.step.name)
        if kills is not None and await asyncio.to_thread(kills.any):
            raise Left(f"{what}: not recovered, as its step had no memory left")
        if crash.status & 0x7F == signal.SIGKILL and not crash.pod.running:
            # Slurm has killed the shims with it, as when an srun dies: the end that anybody else makes is held.
            raise Left(f"{what}: not recovered, as its step was ended", aloud=False)
        self._attempts.check(what, newest.seq)
        try:
            restored = await self._in_place.recover(crash.time + _DECIDE_SECONDS)
        except Lost:
            raise
        except SlurmckptError as error:
            raise Left(f"{what}: not recovered: {error}") from error
        self._attempts.count(what, restored.seq)
        await scene.note(f"{what}: all ranks were restored in place from #{restored.seq}")


def is_crash(status: int, codes: Collection[int]) -> bool:
    """Whether a task that ended with this raw wait status may have crashed. codes: exit codes that count."""
    return os.WIFSIGNALED(status) or os.WEXITSTATUS(status) in codes


def asked_for(status: int, delivered: Collection[int]) -> bool:
    """Whether a task ended because Slurm has signalled it. delivered: the signals that it got that way."""
    fatal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status) - 128
    return fatal in delivered or not _ENDING.isdisjoint(delivered)


def describe(status: int) -> str:
    """How a task ended, as the end of a sentence. status: raw wait status."""
    if not os.WIFSIGNALED(status):
        return f"ended with exit code {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    try:
        return f"died of {signal.Signals(number).name}"
    except ValueError:
        return f"died of signal {number}"
