"""Bring all ranks back to the last group checkpoint within the same allocation: same pods, same shims, same files.

The processes of the pods are killed, files and /dev/shm go back to the boundary, CRIU restores every pod of the cut,
and when all are there, all run. What Slurm knows of the tasks, their shims, goes on as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass

from slurmckpt.capture import attributes, criu, crossings, recreate, sysvipc
from slurmckpt.capture.cuda.mapping import Pairs
from slurmckpt.capture.drain import drain
from slurmckpt.coordinator import correspondence, failures, network, outputs, restoring, shm
from slurmckpt.coordinator.cut import CutAborted, Rendezvous
from slurmckpt.coordinator.files.putting_back import Traces, fill_carried, put_back
from slurmckpt.coordinator.plan import Plan, Planner
from slurmckpt.coordinator.pod import Pod, TaskState
from slurmckpt.coordinator.proc import start_time
from slurmckpt.coordinator.recovery.scene import Scene
from slurmckpt.coordinator.recovery.sruns import Sruns
from slurmckpt.coordinator.reunion import Reunion, leading_outside
from slurmckpt.coordinator.script.launch import Launch
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.streams import OutputHolder, files_written_by, readable
from slurmckpt.errors import SlurmckptError
from slurmckpt.store.manifest import Manifest, StepImage
from slurmckpt.units import format_seconds

log = logging.getLogger(__name__)

_DRAIN_SECONDS = 20.0
# The kernel keeps the port of a closed connection for 60 s (TCP_TIMEWAIT_LEN in include/net/tcp.h).
_PORT_SECONDS = 65.0
_LOOK_SECONDS = 0.2


class Unfit(SlurmckptError):
    """Not possible, and nothing was changed: the message says why."""


class Lost(SlurmckptError):
    """The ranks were killed and could not be brought back. The message says why."""


@dataclass(frozen=True)
class _Part:
    """One pod that goes back."""

    step: Step
    pod: Pod
    image: StepImage


class InPlace:
    """Restores the pods of one incarnation in place."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._shims: dict[int, int] = {}

    def remember(self, step: Step) -> None:
        """Know the shims of a step that has just started again, so that none is taken for another process later."""
        # A script may start very many steps.
        known = {task.shim_pid for one in self._scene.steps.values() for task in one.tasks.values()}
        self._shims = {pid: since for pid, since in self._shims.items() if pid in known}
        for task in step.tasks.values():
            with contextlib.suppress(OSError):
                self._shims[task.shim_pid] = start_time(task.shim_pid)

    async def recover(self, until: float | None) -> Manifest:
        """Restore all ranks; gives the checkpoint that they came back from. Raises Lost; Unfit or another
        SlurmckptError when nothing was changed.

        until: on the clock of time.monotonic(), when the ranks must have been killed: then exits that are held pass by
        themselves, and the shims are gone. A checkpoint that is still being fetched or taken then is waited for
        afterwards.
        """
        scene, incarnation = self._scene, self._scene.incarnation
        newest = scene.checkpointer.newest
        if newest is None:
            raise Unfit("no checkpoint had been taken")
        await asyncio.to_thread(self._parts, newest)
        began = time.monotonic()
        staging = incarnation.staging / "in-place"
        planner = incarnation.planner.again(staging)
        fetching = asyncio.ensure_future(planner.next())
        locks = contextlib.AsyncExitStack()
        locking = asyncio.ensure_future(self._lock(locks))
        try:
            left = None if until is None else max(0.0, until - time.monotonic())
            await asyncio.wait({fetching, locking}, timeout=left)
            parts = await self._last_look(planner, fetching, newest)
            with contextlib.ExitStack() as held_on:
                sruns = await asyncio.to_thread(self._hold_on, parts, held_on)
                try:
                    await self._kill(parts)
                    await locking
                    restored = await self._bring_back(planner, fetching, parts, sruns)
                except BaseException:
                    # Nothing may be left waiting for ranks that do not come back.
                    for part in parts:
                        part.pod.destroy()
                    raise
        finally:
            for future in (fetching, locking):
                future.cancel()
            await asyncio.gather(fetching, locking, return_exceptions=True)
            await locks.aclose()
            await asyncio.to_thread(shutil.rmtree, staging, True)
        scene.checkpointer.newest = restored
        seconds = time.monotonic() - began
        log.info("job %d: restored in place from #%d in %s", scene.job_id, restored.seq, format_seconds(seconds))
        return restored

    async def _lock(self, locks: contextlib.AsyncExitStack) -> None:
        """No checkpoint is taken meanwhile, and no step begins."""
        with self._scene.checkpointer.called_off():
            await locks.enter_async_context(self._scene.checkpointer.one_at_a_time)
        await locks.enter_async_context(self._scene.incarnation.starting)

    def _hold_on(self, parts: Sequence[_Part], stack: contextlib.ExitStack) -> Sruns | None:
        """What lives on must not see that the ranks are gone. Gives the sruns of a script that goes back.

        Raises Unfit or OSError.
        """
        sruns = None
        for part in parts:
            if part.step.name == "batch":
                try:
                    sruns = Sruns(self._scene.incarnation.script, part.step, part.pod)
                    stack.callback(sruns.close)
                    sruns.match(part.image)
                except (SlurmckptError, OSError) as error:
                    raise Unfit(str(error)) from error
        for part in parts:
            # Before the last writer of a pipe dies: its shim must not see the end of it.
            part.step.streams.keep_open(part.step.streams.relayed_inodes())
        return sruns

    async def _last_look(
        self, planner: Planner, fetching: asyncio.Future[Plan | None], newest: Manifest
    ) -> list[_Part]:
        """What goes back, if it still can: meanwhile the job, or a step of it, may have been ended. Raises Unfit."""
        if fetching.done():
            try:
                plan = fetching.result()
            except (SlurmckptError, OSError) as error:
                raise Unfit(str(error)) from error
            if plan is None:
                raise Unfit(planner.cold_start_reason())
            newest = plan.manifest
        parts = await asyncio.to_thread(self._parts, newest)
        if reason := await self._scene.unhealthy():
            raise Unfit(reason)
        for part in parts:
            for saved in part.image.tasks:
                if not saved.exited and not self._is_alive(part.step.tasks[saved.index].shim_pid):
                    raise Unfit(f"step {part.step.name} is being ended by Slurm")
        return parts

    def _parts(self, manifest: Manifest) -> list[_Part]:
        """The pods that go back to this cut: all that run now, and no other. Raises Unfit."""
        plan = self._scene.incarnation.plan
        if plan is not None and plan.open_steps:
            raise Unfit(f"step {min(plan.open_steps)} has not come back from #{plan.manifest.seq} yet")
        running = {step.name: step for step in list(self._scene.steps.values()) if step.running}
        parts = []
        for image in manifest.steps:
            step = running.pop(image.step, None)
            if step is None or step.pod is None:
                raise Unfit(f"step {image.step}, which #{manifest.seq} holds, runs no more")
            if reason := correspondence.mismatch(image, step):
                raise Unfit(reason)
            for saved in image.tasks:
                if not saved.exited and step.pod.tasks[saved.index].status is not None:
                    raise Unfit(f"task {saved.index} of step {step.name} has ended since #{manifest.seq}")
            parts.append(_Part(step, step.pod, image))
        # A script that could not be captured goes on, and so does what others have started.
        script_goes_on = all(image.step != "batch" for image in manifest.steps)
        others = [name for name, step in running.items() if step.launch or (name == "batch" and not script_goes_on)]
        if others:
            raise Unfit(f"step {min(others)} is not part of #{manifest.seq}")
        return parts

    def _is_alive(self, shim_pid: int) -> bool:
        try:
            return start_time(shim_pid) == self._shims.get(shim_pid)
        except OSError:
            return False

    async def _kill(self, parts: Sequence[_Part]) -> None:
        try:
            await asyncio.gather(*(part.pod.kill_tasks() for part in parts))
        except SlurmckptError as error:
            raise await self._lose(parts, str(error)) from error

    async def _bring_back(
        self, planner: Planner, fetching: asyncio.Future[Plan | None], parts: Sequence[_Part], sruns: Sruns | None
    ) -> Manifest:
        """The ranks are dead. Raises Lost."""
        attempts = max(self._scene.incarnation.settings.restore.attempts, 1)
        reasons: list[str] = []
        try:
            plan = await fetching
            while plan is not None and len(reasons) < attempts:
                try:
                    await self._restore(plan, await asyncio.to_thread(self._parts, plan.manifest), sruns)
                    self._scene.incarnation.commands.restored(self._scene.steps.values(), plan.manifest.seq)
                    return plan.manifest
                except (SlurmckptError, OSError) as error:
                    reason = await failures.reason(self._scene.incarnation, "restore", error)
                    log.warning("job %d: #%d is not restored: %s", self._scene.job_id, plan.manifest.seq, reason)
                    reasons.append(f"#{plan.manifest.seq}: {reason}")
                    await asyncio.gather(*(part.pod.kill_tasks() for part in parts))
                plan = await planner.next()
        except (SlurmckptError, OSError) as error:
            reasons.append(str(error))
        raise await self._lose(parts, "; ".join([*reasons, *planner.refused]))

    async def _lose(self, parts: Sequence[_Part], reason: str) -> Lost:
        """End what cannot be brought back, with one line in its output."""
        text = f"the ranks were killed to be restored in place, and could not be: {reason}"
        await self._scene.tell(text)
        for part in parts:
            part.pod.destroy()
        return Lost(text)

    async def _restore(self, plan: Plan, parts: Sequence[_Part], sruns: Sruns | None) -> None:
        """Bring all pods back from this checkpoint. Raises SlurmckptError or OSError."""
        inherited = {part.step.name: self._inheritance(plan, part, sruns) for part in parts}
        await self._settle_output(parts)
        for part in parts:
            await _free_ports(part)
        await self._put_back(plan, parts)
        for part in parts:
            _reset_tasks(part)
        together = Rendezvous(len(parts), _nothing)
        reunion = await Reunion.of(plan)
        results = await asyncio.gather(
            *(self._restore_one(plan, part, inherited[part.step.name], together, reunion, sruns) for part in parts),
            return_exceptions=True,
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise next((each for each in failures if not isinstance(each, CutAborted)), failures[0])
        for part in parts:
            part.step.restored_from = plan.manifest.seq
            if part.step.name == "batch":
                # The script is where it was: what it has started and seen end since then it will start again.
                self._scene.numbers.started = plan.manifest.steps_started

    def _inheritance(self, plan: Plan, part: _Part, sruns: Sruns | None) -> dict[str, int]:
        """CRIU's key of each descriptor from outside -> ours. Raises SlurmckptError or OSError."""
        inherit = correspondence.inheritance(part.image, part.step.streams.given)
        part.pod.reopen_status_pipe()
        inherit[part.image.status_pipe] = part.pod.status_pipe
        correspondence.name_by_path(inherit, plan.manifest.outputs, part.image)
        if part.step.name == "batch" and sruns is not None:
            sruns.match(part.image)
            inherit |= sruns.inherit(part.image)
        return inherit

    async def _settle_output(self, parts: Sequence[_Part]) -> None:
        """What the killed ranks had printed has reached its files before these are cut back."""
        carriers = [part.step.carrier for part in parts if part.step.carrier]
        carriers += [shim for part in parts for shim in part.step.streams.shims]
        carriers += [launch.pid for launch in self._launches()]
        with contextlib.ExitStack() as stack:
            streams = [part.step.streams for part in parts]
            pipes = [pipe for each in streams for pipe in stack.enter_context(readable(each.pipes))]
            inputs = [pipe for each in streams for pipe in stack.enter_context(readable(each.inputs))]
            drained = await drain(pipes, carriers, _DRAIN_SECONDS, inputs) if pipes else None
        if drained is not None and not drained.ok:
            await self._scene.note(f"output after the checkpoint may be there twice: {drained.reason}")

    async def _put_back(self, plan: Plan, parts: Sequence[_Part]) -> None:
        """Files and /dev/shm as they were at the boundary."""
        incarnation = self._scene.incarnation
        carried, uid = plan.manifest.carried, incarnation.spec.job.uid
        await fill_carried(parts[0].pod.init_pid, carried, plan.directory, uid, incarnation.files, Traces())
        for part in parts:
            await put_back(part.pod.init_pid, part.image, plan.directory, incarnation.files, Traces())
            await asyncio.to_thread(sysvipc.clear, part.pod.init_pid)
        if any(part.image.shm for part in parts):
            await asyncio.to_thread(restoring.fill_shm, incarnation.shm, plan, parts[0].pod)
        else:
            await asyncio.to_thread(shm.clear, incarnation.shm)
        borrowed = [each for one in self._launches() for each in files_written_by(one.pid, f"srun/{one.step}")]
        try:
            own = [holder for step in self._scene.steps.values() for holder in step.streams.files]
            holders: list[OutputHolder] = [*own, *borrowed]
            complaints = await outputs.put_back(plan.manifest.outputs, holders, plan.directory, incarnation.files)
        finally:
            for holder in borrowed:
                holder.close()
        for complaint in complaints:
            await self._scene.note(complaint)

    def _launches(self) -> list[Launch]:
        """The sruns of the script, which go on."""
        script = self._scene.incarnation.script
        return script.running() if script is not None else []

    async def _restore_one(
        self,
        plan: Plan,
        part: _Part,
        inherit: dict[str, int],
        together: Rendezvous,
        reunion: Reunion,
        sruns: Sruns | None,
    ) -> None:
        incarnation, pod, image = self._scene.incarnation, part.pod, part.image
        given = {(status.st_dev, status.st_ino) for each in inherit.values() if (status := os.fstat(each))}
        images = plan.directory / image.directory / "images"
        pairs: Pairs = []

        async def connected() -> None:
            crossing = await asyncio.to_thread(crossings.pairs, images)
            outside = leading_outside(image, crossing)
            try:
                await asyncio.to_thread(network.reset, pod.init_pid, outside)
            except OSError as error:
                await self._scene.note(f"connections to the outside could not be reset: {error.strerror}")
            if crossing:
                await reunion.meet(pod)

        async def hand_over() -> None:
            await restoring.check(pod, image, images, given, incarnation.files)
            await restoring.settle(pod, images)
            if part.step.name == "batch" and sruns is not None:
                await asyncio.to_thread(sruns.meet, image, pod.init_pid)
                sruns.forget_later(plan.manifest.launches_started)
            if image.gpu is None:
                await take_over()

        async def take_over() -> None:
            await together.arrive()
            await pod.adopt_again(image.leader_pid, {one.index: one.pid for one in image.tasks if not one.exited})

        target = criu.Target(incarnation.enter, pod.init_pid, pod.uid, pod.gid, pod.cgroups, pod.groups)
        hooks = criu.RestoreHooks(restoring.or_killed(pod, hand_over), inherit, connected, correspondence.names(image))
        try:
            if image.gpu is not None:
                pairs = await incarnation.gpus.pairs(image.gpu, part.step)
            if image.script_path != part.step.script_file.path:
                await restoring.move_script(images, image.script_path, part.step.script_file.path)
            cpus = attributes.cpus_of(task.shim_pid for task in part.step.tasks.values())
            await recreate.restore(incarnation.node.installation, target, images, hooks, cpus)
            if image.gpu is not None:
                locked = await incarnation.gpus.put_back(image.gpu, pod, pairs)
                await take_over()
                await incarnation.gpus.let_go(locked)
        except BaseException:
            together.abort()
            reunion.abort()
            raise
        finally:
            pod.close_status_pipe()


async def _nothing() -> None:
    pass


async def _free_ports(part: _Part) -> None:
    """Wait until the ports of the image's connections can be bound again."""
    connections = [(one.local, one.remote) for one in [*part.image.inside, *part.image.outside]]
    deadline = time.monotonic() + _PORT_SECONDS
    while await asyncio.to_thread(network.remove, part.pod.init_pid, connections) and time.monotonic() < deadline:
        await asyncio.sleep(_LOOK_SECONDS)


def _reset_tasks(part: _Part) -> None:
    """The tasks as they were at the boundary; what their shims hold back belongs to it."""
    step = part.step
    for saved in part.image.tasks:
        if not saved.exited:
            part.pod.tasks[saved.index] = TaskState(saved.gtask, dict(step.tasks[saved.index].keys), saved.pid)
            restoring.hold(step.streams.held[saved.index], saved)
