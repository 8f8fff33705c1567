"""The group checkpoint: prepare -> quiesce -> capture -> resume -> commit -> retain (docs/architecture.md).

Every participant is one pod. Two meetings make the cut: when CRIU has stopped every pod, and when every image is
written. Nothing is dumped before the first, nothing runs before the second. On CPU ranks the freeze itself is the
boundary: both ends of every connection stand still in one dump, so nothing is half done when they go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurmckpt.capture import criu
from slurmckpt.capture.drain import DrainResult, drain
from slurmckpt.capture.preflight import PodScan, scan
from slurmckpt.capture.processes import pid_on_node
from slurmckpt.coordinator import held, launchers, outputs, shm
from slurmckpt.coordinator.cut import CutAborted, Rendezvous
from slurmckpt.coordinator.network import reachable
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.streams import OutputHolder, readable
from slurmckpt.errors import SlurmckptError
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.manifest import Connection, OpenFile, OutputFile, StepImage, TaskImage
from slurmckpt.units import format_bytes

log = logging.getLogger(__name__)

_DRAIN_SECONDS = 10.0
_TRIES = 20
_RETRY_SECONDS = 0.1


class Skipped(SlurmckptError):
    """This group checkpoint is not taken: the message says why. The ranks run on, the previous checkpoint stays."""


class Unsettled(Skipped):
    """Not at this moment, but soon."""


@dataclass(frozen=True)
class Tools:
    """What a capture needs of this node. Sizes in bytes."""

    installation: criu.Installation
    limits: criu.Limits
    enter: Path
    staging: Path
    reserve: int
    shm: Path
    max_output: int


@dataclass
class Participant:
    """One pod of the cut. tasks, scan: as they stood at the boundary."""

    step: Step
    pod: Pod
    images: Path
    tasks: list[TaskImage] = field(default_factory=list)
    scan: PodScan | None = None


@dataclass
class Captured:
    """A cut in staging. steps and outputs go into the manifest.

    processes: pids on this node, for the engine's fingerprint. taken: seconds since 1970.
    """

    directory: Path
    steps: list[StepImage] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    outputs: list[OutputFile] = field(default_factory=list)
    taken: float = 0.0
    freeze_seconds: float = 0.0
    capture_seconds: float = 0.0


def choose(steps: Sequence[Step]) -> list[Step]:
    """The steps that take part.

    A batch script that waits in srun cannot be captured (srun is bound to Slurm's daemons): its running steps are, and
    the script will run again from its top. Without a running srun the script's own pod is the job. A step whose output
    or input another process handles could not be restored beside a script that runs again, so it is not frozen for it.
    Raises Skipped when that leaves none.
    """
    batch = next((step for step in steps if step.name == "batch" and step.running), None)
    others = [step for step in steps if step.name != "batch" and step.running]
    waiting = batch is not None and batch.pod is not None and bool(launchers.find(batch.pod))
    if batch is not None and not (waiting and others):
        if waiting:
            raise Unsettled("an srun of the script is just starting or ending")
        return [batch]
    free = [step for step in others if not step.connected]
    if len({step.argv_digest for step in free}) < len(free):
        raise Skipped("several steps run the same command at once and could be taken for each other at a restore")
    if others and not free:
        raise Skipped(
            f"step {others[0].name} could not be restored: another process reads its output or feeds its input"
            " (a pipe, a file as stdin, or $(...) around srun); let srun write to a file instead"
        )
    return free


async def capture(job_steps: Sequence[Step], seq: int, tools: Tools, files: UserFiles) -> Captured:
    """Take one cut of the running steps of a job into staging. Raises Skipped: staging is clean and all ranks run."""
    began = time.monotonic()
    chosen = await _choose_soon(job_steps)
    directory = tools.staging / str(seq)
    participants = [
        Participant(step, step.pod, directory / step.name / "images") for step in chosen if step.pod is not None
    ]
    if not participants:
        raise Skipped("no task of this job runs in a pod")
    holders: list[OutputHolder] = []
    try:
        await _prepare(participants, directory, tools)
        batch = next((step for step in job_steps if step.name == "batch"), None)
        carriers = [participant.step.carrier for participant in participants if participant.step.carrier]
        carriers += [shim for participant in participants for shim in participant.step.streams.shims]
        # Dups: a step that ends while its output is saved closes its own.
        for step in {id(step): step for step in (*chosen, batch) if step}.values():
            holders += [holder.dup() for holder in step.streams.files]
        if batch is not None and batch not in chosen and batch.pod is not None and batch.pod.running:
            for launcher in await asyncio.to_thread(launchers.find, batch.pod):
                carriers.append(launcher.pid)
                holders += launcher.outputs()
        cut = _Cut(participants, carriers, holders, directory, tools)
        captured = await cut.take()
        captured.outputs = await outputs.save(cut.measured, directory, files, tools.max_output)
        captured.capture_seconds = time.monotonic() - began
        return captured
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(error, (SlurmckptError, OSError)) and not isinstance(error, Skipped):
            raise Skipped(str(error)) from error
        raise
    finally:
        for holder in holders:
            holder.close()


async def _choose_soon(steps: Sequence[Step]) -> list[Step]:
    """choose(), again a little later while an srun is just coming or going."""
    for _ in range(_TRIES):
        with contextlib.suppress(Unsettled):
            return await asyncio.to_thread(choose, steps)
        await asyncio.sleep(_RETRY_SECONDS)
    return await asyncio.to_thread(choose, steps)


async def _prepare(participants: Sequence[Participant], directory: Path, tools: Tools) -> None:
    """Everything that can be refused is refused here, before any rank is stopped."""
    shutil.rmtree(directory, ignore_errors=True)
    needed = await asyncio.to_thread(shm.size, tools.shm)
    for participant in participants:
        participant.images.mkdir(mode=0o700, parents=True)
        found = await asyncio.to_thread(_scan, participant)
        if found.refusals:
            raise Skipped("; ".join(found.refusals[:3]))
        _check_owners(found, participant.pod.uid)
        needed += sum(_resident_bytes(process.pid) for process in found.processes)
    free = shutil.disk_usage(directory).free
    if free - needed < tools.reserve:
        raise Skipped(
            f"the staging disk has {format_bytes(free)} free at {tools.staging}; the image needs up to"
            f" {format_bytes(needed)} and {format_bytes(tools.reserve)} must stay free (staging.reserve)"
        )


class _Cut:
    """One cut under way."""

    def __init__(
        self,
        participants: Sequence[Participant],
        carriers: Sequence[int],
        holders: Sequence[OutputHolder],
        directory: Path,
        tools: Tools,
    ) -> None:
        self.participants = participants
        self.measured: list[tuple[OutputFile, OutputHolder]] = []
        self._carriers = carriers
        self._holders = holders
        self._directory = directory
        self._tools = tools
        self._stopped = Rendezvous(len(participants), self._all_stopped)
        self._written = Rendezvous(len(participants), self._all_written)
        self._measuring: asyncio.Task[None] | None = None
        self._frozen_at = 0.0
        self._boundary = 0.0
        self._shm = False

    async def take(self) -> Captured:
        try:
            results = await asyncio.gather(*(self._dump(each) for each in self.participants), return_exceptions=True)
        finally:
            thawed = time.monotonic()
            if self._measuring is not None:
                self._measuring.cancel()
                await asyncio.wait([self._measuring])
        failures = [result for result in results if isinstance(result, BaseException)]
        own = [failure for failure in failures if not isinstance(failure, CutAborted)]
        if failures:
            raise (own or failures)[0]
        return Captured(
            directory=self._directory,
            steps=[self._image(each) for each in self.participants],
            processes=[process.pid for each in self.participants if each.scan for process in each.scan.processes],
            taken=self._boundary,
            freeze_seconds=thawed - self._frozen_at,
        )

    async def _dump(self, participant: Participant) -> None:
        pod, tools = participant.pod, self._tools

        def starting() -> None:
            self._frozen_at = self._frozen_at or time.monotonic()

        async def frozen() -> Sequence[str]:
            await self._stopped.arrive()
            # All keys the tasks were ever given: one that is no longer open does no harm.
            keys = {key for task in pod.tasks.values() for key in task.keys.values() if key.startswith("file[")}
            return sorted(keys)

        async def dumped() -> None:
            await self._written.arrive()

        target = criu.Target(tools.enter, pod.init_pid, pod.uid, pod.gid)
        try:
            await criu.dump(
                tools.installation,
                target,
                pod.leader_pid,
                participant.images,
                tools.limits,
                criu.DumpHooks(starting, frozen, dumped),
            )
        except BaseException:
            self._stopped.abort()
            self._written.abort()
            raise

    async def _all_stopped(self) -> None:
        """Every rank of every pod stands still. What must be exact is measured while CRIU writes: nothing moves."""
        self._boundary = time.time()
        for participant in self.participants:
            name = participant.step.name
            await participant.pod.sync()
            if not participant.pod.running:
                raise Skipped(f"the tasks of step {name} have ended")
            if name == "batch" and launchers.find(participant.pod):
                raise Skipped("the script has just started an srun, which cannot be captured")
            # Now, as a task may end as soon as it runs again.
            participant.tasks = _task_images(participant.pod)
            if any(not task.pid and not task.exited for task in participant.tasks):
                raise Skipped(f"not all tasks of step {name} have started yet")
        self._measuring = asyncio.create_task(self._measure())

    async def _all_written(self) -> None:
        assert self._measuring is not None
        await self._measuring
        self._shm = await asyncio.to_thread(shm.save, self._tools.shm, self._directory / shm.ARCHIVE)

    async def _measure(self) -> None:
        for participant in self.participants:
            # Only what must be exact is taken from this look; whether all can be dumped is CRIU's to say now.
            participant.scan = await asyncio.to_thread(_scan, participant)
            _check_owners(participant.scan, participant.pod.uid)
        with contextlib.ExitStack() as stack:
            streams = [each.step.streams for each in self.participants]
            pipes = [pipe for each in streams for pipe in stack.enter_context(readable(each.pipes))]
            inputs = [pipe for each in streams for pipe in stack.enter_context(readable(each.inputs))]
            # Tasks that write to files alone have nothing on its way.
            drained = await drain(pipes, self._carriers, _DRAIN_SECONDS, inputs) if pipes else DrainResult(True)
        if not drained.ok:
            raise Skipped(f"output on its way did not settle: {drained.reason}")
        self.measured = outputs.measure(self._holders)
        for participant in self.participants:
            participant.tasks = [_with_held(task, participant.step) for task in participant.tasks]

    def _image(self, participant: Participant) -> StepImage:
        step, pod, found = participant.step, participant.pod, participant.scan
        assert found is not None
        return StepImage(
            step=step.name,
            directory=step.name,
            leader_pid=pod.leader_pid,
            status_pipe=pod.status_key,
            ntasks=step.ntasks,
            argv_digest=step.argv_digest,
            uid=pod.uid,
            gid=pod.gid,
            tasks=participant.tasks,
            addresses=list(found.addresses),
            outside=[Connection(one.local, one.remote) for one in found.outside],
            node_addresses=reachable(Path(f"/proc/{pod.init_pid}")),
            open_files=[
                OpenFile(file.path, file.size, stat.S_IMODE(file.mode))
                for file in found.open_files
                # While CRIU's parasite is in a process, CRIU's own log is open there.
                if not Path(file.path).is_relative_to(self._tools.staging)
                # Saved as a whole with the job's /dev/shm.
                and not file.path.startswith("/dev/shm/")
            ],
            criu_version=self._tools.installation.version,
            shm=self._shm,
            hostname=os.uname().nodename,
            script_path=step.script_file.path,
            script_digest=step.script_file.digest,
        )


def _task_images(pod: Pod) -> list[TaskImage]:
    return [
        TaskImage(
            index=index,
            gtask=task.gtask,
            pid=task.pid,
            exited=task.status is not None,
            status=task.status or 0,
            descriptors={str(number): key for number, key in task.keys.items()},
        )
        for index, task in sorted(pod.tasks.items())
    ]


def _with_held(task: TaskImage, step: Step) -> TaskImage:
    """The task with the incomplete lines that its shim holds back: they belong to what it has written."""
    memory = step.streams.held.get(task.index)
    if memory is None:
        return task
    return replace(task, held={str(stream): text.hex() for stream, text in held.read(memory).items()})


def _check_owners(found: PodScan, uid: int) -> None:
    """Raises Skipped when a process holds what its user may not see: the image goes into the user's store.

    /proc/PID/fd belongs to root where a process is not dumpable, as after executing a set-user-id program
    (proc_pid(5)).
    """
    for process in found.processes:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if os.stat(f"/proc/{process.pid}/fd").st_uid != uid:
                raise Skipped(f"{process} has rights or secrets that its user may not see (a set-user-id program?)")


def _scan(participant: Participant) -> PodScan:
    pod = participant.pod
    known = {key for task in pod.tasks.values() for key in task.keys.values()} | {pod.status_key}
    leader = pid_on_node(pod.init_pid, pod.leader_pid)
    if leader is None:
        raise Skipped(f"the tasks of step {participant.step.name} have ended")
    return scan(pod.init_pid, leader, known)


def _resident_bytes(pid: int) -> int:
    """Memory of a process that an image may hold: what is its own, plus what it shares (proc(5), statm)."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
