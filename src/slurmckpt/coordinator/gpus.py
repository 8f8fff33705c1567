"""The GPU side of a cut and of a restore: CUDA state goes into the ranks' memory before CRIU writes it, and back after.

The order is lock all, checkpoint all, dump, restore all, unlock all. The ranks' CPU threads run on between the first
two steps and CRIU's freeze; a CUDA call waits, and so nothing that depends on a GPU moves.

At a restore CRIU has to let the ranks go before their GPU state can be put back, as a thread of theirs does it
(cuCheckpointProcessGetRestoreThreadId), and CRIU holds all threads until then. They have no GPU yet, and wait in their
next CUDA call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurmckpt.capture.cuda import find, mapping, memory
from slurmckpt.capture.cuda.client import CudaClient
from slurmckpt.capture.cuda.errors import Busy, Unavailable
from slurmckpt.capture.cuda.group import Stuck
from slurmckpt.capture.cuda.mapping import Devices, Pairs
from slurmckpt.capture.processes import Process, pod_processes
from slurmckpt.config import Gpu
from slurmckpt.coordinator.cgroups import procs_files
from slurmckpt.coordinator.choice import Skipped
from slurmckpt.coordinator.participant import Participant
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.uninterrupted import uninterrupted
from slurmckpt.errors import Refused, SlurmckptError
from slurmckpt.store.manifest import GpuImage

log = logging.getLogger(__name__)

_STATE_SECONDS = 20.0
_PID = re.compile(r"\bprocess (\d+)\b")


@dataclass
class Users:
    """The processes of a cut that have CUDA state. bytes: of their GPU memory, 0 when nobody knows."""

    processes: dict[int, Process] = field(default_factory=dict)
    bytes: int = 0
    one_by_one: bool = False
    seconds: float = 0.0

    @property
    def pids(self) -> list[int]:
        """On this node."""
        return sorted(self.processes)

    def named(self, error: Exception) -> str:
        """The error with the processes as the pod's user knows them."""
        return _PID.sub(lambda found: str(self.processes.get(int(found[1]), found[0])), str(error))


class Gpus:
    """The GPUs of one job on this node. timeout: seconds that a copy between GPU and host memory may take."""

    def __init__(
        self,
        settings: Gpu | None = None,
        timeout: float = 600.0,
        client: CudaClient | None = None,
        known_failure: Callable[[], str] = str,
        present: bool = True,
    ) -> None:
        """known_failure: what a trial on this node has found against it; empty when nothing has.

        present: whether the node has GPUs at all: where it has none, a cut costs nothing more.
        """
        self._present = present
        self._known_failure = known_failure
        self._settings = settings or Gpu()
        self._timeout = timeout
        self._client = client or CudaClient()

    async def look(self, participants: Sequence[Participant]) -> Users:
        """Which processes have CUDA state, and can it be captured? Sets the participants' `gpu`. Raises Skipped."""
        everyone = {process.pid: (one, process) for one in participants for process in one.processes}
        holders = [process for one in participants for process in one.gpu_users]
        chosen = await asyncio.to_thread(find.candidates, everyone) if self._present else []
        if not chosen and not holders:
            return Users()
        users = Users()
        try:
            if self._settings.capture == "off" and holders:
                raise Unavailable("GPU capture is switched off on this node (gpu.capture)")
            if holders and (failure := self._known_failure()):
                raise Unavailable(f"`slurmckpt selftest --gpu` has failed on this node: {failure}")
            users.processes = {pid: everyone[pid][1] for pid in await self._client.find(chosen)}
            devices = await self._client.devices() if users.processes else []
        except SlurmckptError as error:
            if not holders:
                return Users()  # the library alone is no state
            raise Skipped(f"{holders[0]} uses a GPU, and its CUDA state cannot be captured: {error}") from error
        self._check(users, holders, participants)
        users.one_by_one = any(one.step.profile.name == "job" for one in participants)
        users.bytes = await self._client.used(users.pids) or 0
        await asyncio.to_thread(_check_memory, users)
        for one in participants:
            inside = sorted(each.ns_pid for each in one.processes if each.pid in users.processes)
            if inside:
                step = one.step
                one.gpu = GpuImage(inside, devices, list(step.gpu_indices), step.profile.name, step.profile.reason)
        return users

    def _check(self, users: Users, holders: Iterable[Process], participants: Sequence[Participant]) -> None:
        for process in holders:
            if process.pid not in users.processes:
                raise Skipped(
                    f"{process} has a GPU device open and no CUDA state of its own: a child of a CUDA program that was"
                    " forked without exec (use the start method spawn for worker processes), or a GPU monitor"
                )
        if len(users.processes) > 1:
            for one in participants:
                if one.step.profile.conflict:
                    raise Skipped(one.step.profile.conflict)

    @contextlib.asynccontextmanager
    async def at_rest(self, users: Users) -> AsyncIterator[None]:
        """While it lasts, all GPU state of the ranks is in their memory. Raises Skipped. After it all run, always."""
        if not users.processes:
            yield
            return
        began = time.monotonic()
        try:
            # Within: who is cancelled while a lock is under way leaves it to be undone.
            await self._lock(users)
            try:
                await self._client.checkpoint(users.pids, self._timeout, users.one_by_one)
                await asyncio.to_thread(_check_devices_gone, users)
            except SlurmckptError as error:
                raise Skipped(users.named(error)) from error
            yield
        finally:
            # Who is cancelled meanwhile leaves no rank without its GPU that is neither running nor killed.
            await uninterrupted(self._resume(users))
            users.seconds = time.monotonic() - began

    async def _lock(self, users: Users) -> None:
        """All ranks at once, several times: without a gate it is luck whether no collective is half done."""
        settings = self._settings
        for left in reversed(range(settings.lock_tries)):
            try:
                await self._client.lock(users.pids, settings.lock_timeout)
                return
            except Busy as error:
                if not left:
                    tries = f"{settings.lock_tries} tries" if settings.lock_tries > 1 else "one try"
                    raise Skipped(f"{users.named(error)} ({tries})") from error
            except SlurmckptError as error:
                raise Skipped(users.named(error)) from error
            # Not in step with the ranks' own iterations.
            await asyncio.sleep(random.uniform(0.1, 1.0) * settings.lock_timeout)

    async def _resume(self, users: Users) -> None:
        try:
            await self._client.resume(users.pids, self._timeout, one_by_one=users.one_by_one)
        except SlurmckptError as error:
            left = error.pids if isinstance(error, Stuck) else await self._left_behind(users)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed = "ranks were killed, as they did not get their GPU state back: " if left else ""
            raise Skipped(killed + users.named(error)) from error

    async def _left_behind(self, users: Users) -> list[int]:
        """Those that do not run, or of which nobody knows."""
        left = []
        for pid in users.pids:
            state: str | None = "unknown"
            with contextlib.suppress(SlurmckptError):
                state = await self._client.state(pid, _STATE_SECONDS)
            if state not in (None, "RUNNING"):
                left.append(pid)
        return left

    async def pairs(self, image: GpuImage, step: Step) -> Pairs:
        """Which GPU stands for which. Raises Refused when the image cannot be put back on this node."""
        try:
            devices = await self._client.devices()
        except SlurmckptError as error:
            raise Refused(f"the checkpoint has GPU state, and this node cannot take it: {error}") from error
        used = step.gpu_indices
        return mapping.pairs(Devices(image.devices, image.used), Devices(devices, used if image.used else ()))

    async def put_back(self, image: GpuImage, pod: Pod, pairs: Pairs) -> list[int]:
        """GPU state of restored processes, which run; they stay locked. Gives their pids. Raises SlurmckptError."""
        inside = {each.ns_pid: each for each in await asyncio.to_thread(pod_processes, pod.init_pid)}
        missing = [pid for pid in image.processes if pid not in inside]
        if missing:
            raise Refused(f"process {missing[0]}, which had GPU state, did not come back")
        users = Users({inside[pid].pid: inside[pid] for pid in image.processes})
        try:
            await self._client.restore(users.pids, self._timeout, pairs, image.profile == "job")
        except SlurmckptError as error:
            raise Refused(users.named(error)) from error
        return users.pids

    async def let_go(self, pids: Sequence[int]) -> None:
        """Unlock them. Raises SlurmckptError."""
        await self._client.resume(pids, self._timeout)


def _check_memory(users: Users) -> None:
    groups: set[Path] = set()
    for pid in users.pids:
        with contextlib.suppress(OSError):
            groups.update(file.parent for file in procs_files(pid))
    try:
        memory.check(users.bytes, sorted(groups), memory.available())
    except memory.NoRoom as error:
        raise Skipped(str(error)) from error


def _check_devices_gone(users: Users) -> None:
    for pid, process in users.processes.items():
        if find.holds_device(pid):
            raise Skipped(
                f"{process} has a GPU device open although the driver has saved its state: close what else uses the GPU"
                " (graphics, a monitor) before a checkpoint"
            )
