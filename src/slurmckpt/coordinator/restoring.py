"""Bring one step back from a verified checkpoint: files to the boundary, a pod, CRIU, and only then the ranks run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from slurmckpt import faults
from slurmckpt.capture import attributes, criu, crossings, fileimages, multicast, pids, recreate, reopened, undo
from slurmckpt.capture.cuda.mapping import Pairs
from slurmckpt.capture.processes import pid_on_node, pod_processes
from slurmckpt.coordinator import gating, held, outputs, reunion, scriptpaths, shm, shm_charged
from slurmckpt.coordinator.correspondence import inheritance, name_by_path, names
from slurmckpt.coordinator.files.putting_back import Traces, fill_carried, put_back
from slurmckpt.coordinator.gpus import Gpus
from slurmckpt.coordinator.network import JobNetwork, PodNetwork
from slurmckpt.coordinator.plan import Plan
from slurmckpt.coordinator.pod import Pod, TaskState
from slurmckpt.coordinator.pod_init import PodError
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.streams import OutputHolder
from slurmckpt.coordinator.task import Task
from slurmckpt.errors import Refused, SlurmckptError
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.manifest import Manifest, StepImage, TaskImage

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restorer:
    """What a restore needs of this node. pasta: the program, or empty for no way out of a network of the pod's own.
    network: what pods that came back before share.

    traces: what it leaves that was not there before.
    """

    installation: criu.Installation
    enter: Path
    shm: Path
    files: UserFiles
    pasta: str
    network: JobNetwork
    gpus: Gpus = field(default_factory=Gpus)
    traces: Traces = field(default_factory=Traces)


@dataclass(frozen=True)
class Stand:
    """A pod that does not come back alone. inherit: more descriptors by CRIU's keys.

    wait: returns when the ranks may run; what it raises ends the restore. The pod stands still meanwhile.
    meet: for a pod with connections into others: returns when all ends of these exist and can hear (`Reunion`).
    lends: gives, by pids inside the pod, the descriptors that others get at either of these. Raises OSError, WireError.
    """

    wait: Callable[[Pod], Awaitable[None]]
    meet: Callable[[Pod], Awaitable[None]]
    inherit: Mapping[str, int] = field(default_factory=dict)
    lends: Callable[[], Mapping[int, Collection[int]]] = dict


class Lost(SlurmckptError):
    """The restore failed when pod init had the shims already: they can be given to nothing else, the tasks are lost."""


async def restore(
    restorer: Restorer,
    plan: Plan,
    image: StepImage,
    step: Step,
    tasks: Sequence[Task],
    pod: Pod,
    holders: Sequence[OutputHolder],
    stand: Stand | None = None,
) -> list[str]:
    """Restore `step` into `pod`, which is not built yet. Raises SlurmckptError or OSError; the caller destroys the pod.

    Gives what is worth knowing of a restore that went well: one sentence each, mostly none.

    holders: descriptors of this incarnation through which the job's output is written. Files are brought to the
    boundary only when everything else stands, as what lies behind the boundary in them is lost then. stand: what else
    must be so before the ranks run.
    """
    work = _Restore(restorer, plan, image, step, tasks, pod, stand)
    # Before anything is changed: a node that cannot take the GPU state refuses.
    pairs = await restorer.gpus.pairs(image.gpu, step) if image.gpu is not None else []
    await work.build_pod()
    await work.put_files_back(holders)
    work.announce_tasks()
    await work.bring_back(pairs)
    await work.finish()
    return [*work.network.notes, *work.lost]


class _Restore:
    """One restore, step by step, in the order of its methods.

    inherit: CRIU's keys of what the processes had from outside -> our descriptors. adopted: whether pod init has the
    shims, so that nothing else can have them any more. lost: what is worth knowing of paths that lead nowhere now.
    """

    def __init__(
        self,
        restorer: Restorer,
        plan: Plan,
        image: StepImage,
        step: Step,
        tasks: Sequence[Task],
        pod: Pod,
        stand: Stand | None,
    ) -> None:
        """Raises Refused when the tasks, or their descriptors, are not those of the image."""
        self._restorer = restorer
        self._plan = plan
        self._image = image
        self._step = step
        self._tasks = {task.hello.task: task for task in tasks}
        self._first = tasks[0]
        self._pod = pod
        self._stand = stand
        self._images = plan.directory / image.directory / "images"
        self.inherit = inheritance(image, {index: task.descriptors for index, task in self._tasks.items()})
        self.adopted = False
        self.lost: list[str] = []
        self.network = PodNetwork(
            restorer.enter,
            pod,
            image.addresses,
            known_addresses(plan.manifest),
            restorer.pasta,
            image.hostname,
            restorer.network,
        )

    async def build_pod(self) -> None:
        """Namespaces, and what its processes will have from outside of them."""
        faults.at("restore.pod")
        await self.network.build(self._first.shim_pid)
        await asyncio.to_thread(pids.check, self._images, self._pod.pid_max)
        self.inherit[self._image.status_pipe] = self._pod.status_pipe
        name_by_path(self.inherit, self._plan.manifest.outputs, self._image)
        if self._stand is not None:
            self.inherit |= self._stand.inherit
        if self._image.script_path != self._step.script_file.path:
            await move_script(self._images, self._image.script_path, self._step.script_file.path)
        known, script = self._image.script_paths, self._step.script_file
        self.lost = await asyncio.to_thread(scriptpaths.lead, known, script, self._pod.settings.run)
        self._step.script_file = script.known_at(known)

    async def put_files_back(self, holders: Sequence[OutputHolder]) -> None:
        """To the boundary, in the order in which one may lie in the other; what is printed comes last."""
        restorer, plan, image = self._restorer, self._plan, self._image
        if plan.manifest.carried and not plan.filled_carried:
            carried, init = plan.manifest.carried, self._pod.init_pid
            await fill_carried(init, carried, plan.directory, image.uid, restorer.files, restorer.traces)
            plan.filled_carried = True
        await put_back(self._pod.init_pid, image, plan.directory, restorer.files, restorer.traces)
        if image.shm and not plan.filled_shm:
            await asyncio.to_thread(fill_shm, restorer.shm, plan, self._pod)
            plan.filled_shm = True
        if all(task.channel.ended() for task in self._tasks.values()):
            raise Refused("its tasks do not wait for it any more")
        faults.at("restore.put_back")
        for complaint in await outputs.put_back(plan.manifest.outputs, holders, plan.directory, restorer.files):
            log.warning("step %s: %s", self._step.name, complaint)

    def announce_tasks(self) -> None:
        """Let pod and shims know where each task was at the boundary."""
        for saved in self._image.tasks:
            keys = {int(number): key for number, key in saved.descriptors.items()}
            status = saved.status if saved.exited else None
            self._pod.tasks[saved.index] = TaskState(saved.gtask, keys, saved.pid, status)
            hold(self._tasks[saved.index].held, saved)

    async def bring_back(self, pairs: Pairs) -> None:
        """The processes, which run then. Raises Lost from the moment on at which pod init has the shims."""
        restorer, image, pod = self._restorer, self._image, self._pod
        given = {(status.st_dev, status.st_ino) for each in self.inherit.values() if (status := os.fstat(each))}

        async def restored() -> None:
            await self._hand_over(given)

        target = criu.Target(restorer.enter, pod.init_pid, pod.uid, pod.gid, pod.cgroups, pod.groups)
        connected = partial(self._connected, given)
        hooks = criu.RestoreHooks(or_killed(pod, restored), self.inherit, connected, names(image))
        faults.at("restore.criu")
        try:
            cpus = attributes.cpus_of(task.shim_pid for task in self._tasks.values())
            await recreate.restore(restorer.installation, target, self._images, hooks, cpus)
            faults.at("restore.resumed")
            if image.gpu is not None:
                # Its threads had to run for that, but none gets at a GPU before it is unlocked.
                locked = await restorer.gpus.put_back(image.gpu, pod, pairs)
                await self._take_over()
                await restorer.gpus.let_go(locked)
        except (SlurmckptError, OSError) as error:
            if not self.adopted:
                raise
            await pod.say(f"slurmckpt: the task is killed: its restore failed when it was about to run: {error}")
            raise Lost(str(error)) from error

    async def _connected(self, given: set[tuple[int, int]]) -> None:
        """All sockets exist, and none may send."""
        faults.at("restore.connected")
        crossing = await asyncio.to_thread(crossings.pairs, self._images)
        await self.network.reset(reunion.leading_outside(self._image, crossing))
        if not crossing:
            return
        if self._stand is None:
            raise Refused("it is connected with a step that does not come back together with it")
        # It is not complete, and CRIU's own descriptors are still in it: what others get counts.
        lent = await asyncio.to_thread(self._stand.lends)
        await check_rights(self._pod, self._image.leader_pid, given, self._restorer.files, lent)
        # Those that it waits for are to join it.
        await self.network.open()
        await self._stand.meet(self._pod)

    async def _hand_over(self, given: set[tuple[int, int]]) -> None:
        """All processes exist, and none has run."""
        faults.at("restore.restored")
        await check(self._pod, self._image, self._images, given, self._restorer.files)
        await self.network.open()
        await settle(self._pod, self._images)
        if self._image.gpu is None:
            await self._take_over()

    async def _take_over(self) -> None:
        if self._stand is not None:
            await self._stand.wait(self._pod)
        alive = [(0 if saved.exited else saved.pid, self._tasks[saved.index]) for saved in self._image.tasks]
        self.adopted = True
        await self._pod.adopt(self._image.leader_pid, alive)
        faults.at("restore.adopted")

    async def finish(self) -> None:
        """The processes run: who waits for a task that had ended gets its answer, and what they have we let go."""
        self._pod.close_status_pipe()
        for saved in self._image.tasks:
            if saved.exited:
                # A shim that died meanwhile needs no answer.
                with contextlib.suppress(ConnectionError):
                    await self._tasks[saved.index].channel.send("EXIT", [("status", saved.status)])
        for task in self._tasks.values():
            task.close()
        # From now on the descriptors of this incarnation stand where those of the old one stood: the next image names
        # them.
        for index, task in self._tasks.items():
            self._pod.tasks[index].keys = dict(task.keys)


def known_addresses(manifest: Manifest) -> list[str]:
    """By what the pods of a job know each other, and what any of them is bound to.

    Where one needs a network of its own, all do: a connection that one of them made out of the network that they had
    shared has an address that no node has (way_out).
    """
    return [address for image in manifest.steps for address in (*image.node_addresses, *image.addresses)]


def fill_shm(directory: Path, plan: Plan, pod: Pod) -> None:
    """The job's /dev/shm as at the boundary, on the account of `pod`, and the gates in it open. Raises ShmError."""
    shm_charged.fill(directory, plan.directory / shm.ARCHIVE, pod.cgroups)
    gating.reopen(directory)


def hold(memory: int, saved: TaskImage) -> None:
    """Let the shim that shares this memory begin with what was held back at the boundary."""
    held.write(memory, {int(stream): bytes.fromhex(text) for stream, text in saved.held.items()})


async def move_script(images: Path, old: str, new: str) -> None:
    """The same script lies elsewhere on this node; shells have it open. Raises Refused."""
    try:
        await asyncio.to_thread(fileimages.rename, images, old, new)
    except (OSError, fileimages.ImageError) as error:
        raise Refused(f"the path of the batch script cannot be changed in the image: {error}") from error


def or_killed(pod: Pod, hand_over: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """For RestoreHooks.restored: where `hand_over` fails, the processes are dead before CRIU hears of it.

    It would let them run all the same.
    """

    async def restored() -> None:
        try:
            await hand_over()
        except BaseException:
            try:
                await pod.kill_tasks()
            except PodError:
                pod.destroy()
            raise

    return restored


async def check(pod: Pod, image: StepImage, images: Path, given: set[tuple[int, int]], files: UserFiles) -> None:
    """Raises Refused when the processes, which have not run yet, are not those of the image. CRIU does not say so."""
    await check_rights(pod, image.leader_pid, given, files)
    if undo.has_failed(images):
        raise Refused("what semaphores have to undo (SEM_UNDO) could not be set again")


async def settle(pod: Pod, images: Path) -> None:
    """What the pod itself is to have when its processes run again."""
    # Only now all interfaces are there.
    await asyncio.to_thread(multicast.apply, pod.init_pid, images)
    await pod.continue_pids(await asyncio.to_thread(pids.last, images))


async def check_rights(
    pod: Pod,
    leader_pid: int,
    given: set[tuple[int, int]],
    files: UserFiles,
    only: Mapping[int, Collection[int]] | None = None,
) -> None:
    """Raises Refused when CRIU, as root, has opened by path what the user could not: a link may stand there now.

    only: by pids inside the pod, a look at these descriptors alone.
    """
    leader = await asyncio.to_thread(pid_on_node, pod.init_pid, leader_pid)
    if leader is None:
        raise Refused("its leader did not come back")
    restored = await asyncio.to_thread(pod_processes, pod.init_pid, leader)
    objects = await asyncio.to_thread(reopened.collect, restored, given, only)
    root = os.open(f"/proc/{leader}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        await files.run_to_end(reopened.check, objects, root, pod.uid)
    finally:
        os.close(root)
