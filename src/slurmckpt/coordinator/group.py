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

from slurmckpt import faults
from slurmckpt.capture import criu
from slurmckpt.capture.drain import DrainResult, drain
from slurmckpt.capture.preflight import PodScan, scan
from slurmckpt.capture.processes import pid_on_node, pod_processes
from slurmckpt.coordinator import held, outputs, shm
from slurmckpt.coordinator.choice import Choice, Skipped, Suspended, Unsettled, choose, without_script
from slurmckpt.coordinator.cut import CutAborted, Rendezvous
from slurmckpt.coordinator.network import reachable
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.script import inputs as script_inputs
from slurmckpt.coordinator.script import saved, stand_ins
from slurmckpt.coordinator.script.script import Script
from slurmckpt.coordinator.script.stand_ins import StandIn, Underway
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.streams import OutputHolder, files_written_by, readable
from slurmckpt.errors import SlurmckptError
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.manifest import Connection, OpenFile, OutputFile, StepImage, TaskImage
from slurmckpt.units import format_bytes

log = logging.getLogger(__name__)

_DRAIN_SECONDS = 10.0


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

    processes: pids on this node, for the engine's fingerprint. taken: seconds since 1970. script: when it is part of it
    with its sruns; it may have ended by now. without_script: why the batch script, which runs, is not part of it.
    """

    directory: Path
    steps: list[StepImage] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    outputs: list[OutputFile] = field(default_factory=list)
    taken: float = 0.0
    freeze_seconds: float = 0.0
    capture_seconds: float = 0.0
    script: Script | None = None
    without_script: str = ""


async def capture(
    job_steps: Sequence[Step], script: Script | None, seq: int, tools: Tools, files: UserFiles
) -> Captured:
    """Take one cut of the running steps of a job into staging. script: of the running batch task.

    Raises Skipped: staging is clean and all ranks run. Unsettled when it may be tried again at once.
    """
    began = time.monotonic()
    directory = tools.staging / str(seq)
    holders: list[OutputHolder] = []
    try:
        choice = await _choose(job_steps, script)
        participants = [
            Participant(step, step.pod, directory / step.name / "images")
            for step in choice.steps
            if step.pod is not None
        ]
        await _prepare(participants, choice, directory, tools)
        holders += _holders(job_steps, choice)
        cut = _Cut(participants, choice, holders, directory, tools)
        captured = await cut.take()
        faults.at("capture.resumed")
        captured.outputs = await outputs.save(cut.measured, directory, files, tools.max_output)
        captured.capture_seconds = time.monotonic() - began
        captured.script = choice.script
        captured.without_script = choice.without_script
        return captured
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(error, Underway):
            raise Unsettled(str(error)) from error
        if isinstance(error, (SlurmckptError, OSError)) and not isinstance(error, Skipped):
            raise Skipped(str(error)) from error
        raise
    finally:
        for holder in holders:
            holder.close()


async def _choose(steps: Sequence[Step], script: Script | None) -> Choice:
    """Who takes part, after a look at whether the script can."""
    choice = choose(steps, script)
    batch = choice.steps[0]
    if choice.script is not None and len(choice.steps) > 1 and batch.pod is not None:
        found = await asyncio.to_thread(_scan, batch, batch.pod, choice)
        if found.refusals:
            return without_script(steps, found.refusals[0])
    return choice


def _holders(steps: Sequence[Step], choice: Choice) -> list[OutputHolder]:
    """Everything through which output files are written. Dups: a step that ends meanwhile closes its own."""
    writers = [step for step in steps if step.name == "batch" or step in choice.steps]
    holders = [holder.dup() for step in writers for holder in step.streams.files]
    for launch in choice.launches:
        if launch.step:
            holders += files_written_by(launch.pid, f"srun/{launch.step}")
    return holders


async def _prepare(participants: Sequence[Participant], choice: Choice, directory: Path, tools: Tools) -> None:
    """Everything that can be refused is refused here, before any rank is stopped."""
    faults.at("capture.prepare")
    shutil.rmtree(directory, ignore_errors=True)
    needed = await asyncio.to_thread(shm.size, tools.shm)
    for participant in participants:
        participant.images.mkdir(mode=0o700, parents=True)
        found = await asyncio.to_thread(_scan, participant.step, participant.pod, choice)
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
        choice: Choice,
        holders: Sequence[OutputHolder],
        directory: Path,
        tools: Tools,
    ) -> None:
        self.participants = participants
        self.measured: list[tuple[OutputFile, OutputHolder]] = []
        self._choice = choice
        self._waiting: list[StandIn] = []
        self._input: dict[int, bytes] = {}
        self._saved = saved.Saved()
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
        self._saved = await asyncio.to_thread(
            saved.save, self._choice.script, self._waiting, self._input, self._directory / "batch"
        )
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
            faults.at("capture.stopping")

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
        faults.at("capture.stopped")
        for participant in self.participants:
            name = participant.step.name
            await participant.pod.sync()
            if not participant.pod.running:
                raise Unsettled(f"the tasks of step {name} have ended")
            if participant.pod.exits:
                raise Unsettled(f"task {min(participant.pod.exits)} of step {name} has just ended")
            if participant.pod.stopping:
                raise Suspended("the job is being suspended")
            # Now, as a task may end as soon as it runs again.
            participant.tasks = _task_images(participant.pod)
            if any(not task.pid and not task.exited for task in participant.tasks):
                raise Unsettled(f"not all tasks of step {name} have started yet")
        if self._choice.script is not None:
            await self._find_stand_ins(self._choice.script)
        self._measuring = asyncio.create_task(self._measure())
        if any(launch.is_fed or launch.pipes_inside for launch in self._choice.launches):
            # What is under way flows into pipes that are dumped: it must have arrived before.
            await asyncio.shield(self._measuring)

    async def _find_stand_ins(self, script: Script) -> None:
        batch = self.participants[0].pod
        processes = await asyncio.to_thread(pod_processes, batch.init_pid)
        self._waiting = await asyncio.to_thread(stand_ins.find, script, processes)
        # The same question as before the freeze: nothing may have begun or ended meanwhile.
        steps = self._choice.steps[1:]
        brought = sum(bool(launch.step or launch.outside) for launch in script.running())
        ended = any(one.status != one.launch.status for one in self._waiting)
        if ended or brought != len(steps) or not all(step.running for step in steps):
            raise Unsettled("a step is just starting or ending")

    async def _all_written(self) -> None:
        assert self._measuring is not None
        await self._measuring
        faults.at("capture.written")
        for participant in self.participants:
            await participant.pod.sync()
            if participant.pod.stopping:
                raise Suspended("the job is being suspended")
        self._shm = await asyncio.to_thread(shm.save, self._tools.shm, self._directory / shm.ARCHIVE)

    async def _measure(self) -> None:
        faults.at("capture.measure")
        for participant in self.participants:
            # Only what must be exact is taken from this look; whether all can be dumped is CRIU's to say now.
            participant.scan = await asyncio.to_thread(_scan, participant.step, participant.pod, self._choice)
            _check_owners(participant.scan, participant.pod.uid)
        await self._drain()
        self.measured = outputs.measure(self._own_holders())
        for participant in self.participants:
            participant.tasks = [_with_held(task, participant.step) for task in participant.tasks]

    async def _drain(self) -> None:
        """Wait until output has arrived; and what sruns have read ahead, in the pipes of their tasks."""
        launches = self._choice.launches
        streams = [each.step.streams for each in self.participants]
        carriers = [each.step.carrier for each in self.participants if each.step.carrier]
        carriers += [shim for each in streams for shim in each.shims]
        carriers += [launch.pid for launch in launches]
        with contextlib.ExitStack() as stack:
            pipes = [pipe for each in streams for pipe in stack.enter_context(readable(each.pipes))]
            inputs = [pipe for each in streams for pipe in stack.enter_context(readable(each.inputs))]
            inside = {one.launch.number: stack.enter_context(stand_ins.pipes(one)) for one in self._waiting}
            fed = [launch for launch in launches if launch.is_fed]
            script_inputs.make_room([*inputs, *(pipe for each in inside.values() for pipe in each.values())])
            sources = [inside[launch.number][0] for launch in fed if 0 in inside.get(launch.number, {})]
            if fed:
                # Input counts as well: all of it must come to rest where it can be found.
                drained = await drain([*pipes, *sources], carriers, _DRAIN_SECONDS)
            elif pipes or any(each for each in inside.values()):
                drained = await drain(pipes, carriers, _DRAIN_SECONDS, inputs)
            else:
                drained = DrainResult(True)  # tasks that write to files alone have nothing on its way
            if not drained.ok:
                raise Skipped(f"output on its way did not settle: {drained.reason}")
            for each in self.participants[1:]:
                launch = each.step.launch
                if launch is not None and launch.is_fed:
                    with readable(each.step.streams.inputs) as own:
                        self._input[launch.number] = _common(own, each.step)

    def _own_holders(self) -> list[OutputHolder]:
        """The holders without those of sruns for files that the script has open as well: CRIU brings these back."""
        if self._choice.script is None:
            return list(self._holders)
        scan = self.participants[0].scan
        known = {(file.device, file.inode) for file in scan.open_files} if scan is not None else set()
        return [one for one in self._holders if not (one.name.startswith("srun/") and one.identity in known)]

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
            inside=[Connection(local, remote) for local, remote in found.inside],
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
            command=step.command,
            launches=self._saved.launches if step.name == "batch" else [],
            environment=self._saved.environment if step.name == "batch" else None,
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


def _common(pipes: Sequence[int], step: Step) -> bytes:
    """What every task of the step still finds in its standard input. Raises Skipped when they differ."""
    found = script_inputs.common_content(pipes)
    if found is None:
        raise Skipped(f"the tasks of step {step.name} have read different amounts of their common standard input")
    return found


def _scan(step: Step, pod: Pod, choice: Choice) -> PodScan:
    known = {key for task in pod.tasks.values() for key in task.keys.values()} | {pod.status_key}
    if choice.script is not None and step.name == "batch":
        known |= {key for launch in choice.script.launches.values() for key in (launch.signal_key, launch.status_key)}
    leader = pid_on_node(pod.init_pid, pod.leader_pid)
    if leader is None:
        raise Skipped(f"the tasks of step {step.name} have ended")
    return scan(pod.init_pid, leader, known)


def _resident_bytes(pid: int) -> int:
    """Memory of a process that an image may hold: what is its own, plus what it shares (proc(5), statm)."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
