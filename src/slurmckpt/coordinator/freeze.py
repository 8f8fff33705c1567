"""A cut under way: every pod is stopped, measured, written and let go together (docs/architecture.md).

Two meetings make the cut: when CRIU has stopped every pod, and when every image is written. Nothing is dumped before
the first, nothing runs before the second.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurmckpt import faults
from slurmckpt.capture import (
    attributes,
    criu,
    crossings,
    datagrams,
    failedsockets,
    linkremaps,
    listeners,
    multicast,
    pids,
    rlimits,
    socketdirs,
    socketoptions,
    sysvipc,
    timerfds,
    undo,
    unixnames,
    unixqueues,
)
from slurmckpt.capture.drain import DrainResult, drain
from slurmckpt.capture.inspect.used import UsedFile
from slurmckpt.capture.preflight import PodScan
from slurmckpt.capture.processes import pod_processes
from slurmckpt.config import Gate
from slurmckpt.coordinator import between, outputs, shm
from slurmckpt.coordinator.choice import Choice, Doubtful, Ended, Skipped, Suspended, Unsettled
from slurmckpt.coordinator.cut import CutAborted, Rendezvous
from slurmckpt.coordinator.files.rules import Rules
from slurmckpt.coordinator.files.saving import Saver
from slurmckpt.coordinator.gpus import Gpus
from slurmckpt.coordinator.linking import Linking
from slurmckpt.coordinator.participant import (
    Participant,
    check_owners,
    image,
    look,
    not_brought,
    task_images,
    with_held,
)
from slurmckpt.coordinator.quiesce import Quiesced
from slurmckpt.coordinator.script import inputs as script_inputs
from slurmckpt.coordinator.script import saved, stand_ins
from slurmckpt.coordinator.script.script import Script
from slurmckpt.coordinator.script.stand_ins import StandIn
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.streams import OutputHolder, readable
from slurmckpt.store.manifest import CarriedDirectory, OutputFile, StepImage

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
    files: Rules
    gate: Gate = field(default_factory=Gate)
    gpus: Gpus = field(default_factory=Gpus)


@dataclass
class Captured:
    """A cut in staging. steps, outputs and carried go into the manifest.

    files: what the ranks have mapped, or open for reading, and the checkpoint does not hold, for the fingerprint. left:
    what a restore on another node will miss, in one line. taken: seconds since 1970. script: when
    it is part of it with its sruns; it may have ended by now. without_script: why the batch script, which runs, is not
    part of it. launches_started, steps_started: how many sruns and steps the script had begun at the boundary.
    """

    directory: Path
    steps: list[StepImage] = field(default_factory=list)
    files: list[UsedFile] = field(default_factory=list)
    outputs: list[OutputFile] = field(default_factory=list)
    taken: float = 0.0
    freeze_seconds: float = 0.0
    capture_seconds: float = 0.0
    script: Script | None = None
    without_script: str = ""
    carried: list[CarriedDirectory] = field(default_factory=list)
    left: str = ""
    launches_started: int = 0
    steps_started: int = 0


class Cut:
    """One cut under way."""

    def __init__(
        self,
        participants: Sequence[Participant],
        choice: Choice,
        holders: Sequence[OutputHolder],
        directory: Path,
        tools: Tools,
        saver: Saver,
        quiesced: Quiesced,
    ) -> None:
        self.participants = participants
        self.measured: list[tuple[OutputFile, OutputHolder]] = []
        self._choice = choice
        self._waiting: list[StandIn] = []
        self._input: dict[int, bytes] = {}
        self._launches_started = 0
        self._saved = saved.Saved()
        self._holders = holders
        self._directory = directory
        self._tools = tools
        self._linking = Linking(participants, tools.shm)
        self._saver = saver
        self._stopped = Rendezvous(len(participants), self._all_stopped)
        self._written = Rendezvous(len(participants), self._all_written)
        self._measuring: asyncio.Task[None] | None = None
        self._quiesced = quiesced
        # Ranks that are held at a boundary stand still already.
        self._frozen_at = quiesced.since
        self._boundary = 0.0
        self._copy = shm.Copy(tools.shm, directory / shm.ARCHIVE, linkremaps.is_name)
        self._copying: asyncio.Task[None] | None = None
        self._shm = False

    async def take(self) -> Captured:
        try:
            results = await asyncio.gather(*(self._dump(each) for each in self.participants), return_exceptions=True)
        finally:
            thawed = time.monotonic()
            self._linking.remove()
            if self._measuring is not None:
                self._measuring.cancel()
                await asyncio.wait([self._measuring])
            if self._copying is not None:
                await asyncio.wait([self._copying])
                self._copying.exception()
                self._copy.close()
        failures = [result for result in results if isinstance(result, BaseException)]
        own = [failure for failure in failures if not isinstance(failure, CutAborted)]
        if failures:
            raise (own or failures)[0]
        await self._linking.finish()
        try:
            for each in self.participants:
                await asyncio.to_thread(listeners.check, each.images, each.pod.init_pid, each.pod.uid)
            await asyncio.to_thread(between.seal, self.participants)
        except (unixnames.Waiting, crossings.Torn) as error:
            raise Unsettled(str(error)) from error
        self._saved = await asyncio.to_thread(
            saved.save, self._choice.script, self._waiting, self._input, self._directory / "batch"
        )
        return Captured(
            directory=self._directory,
            steps=[image(each, self._tools.installation.version, self._shm, self._saved) for each in self.participants],
            files=[file for each in self.participants for file in not_brought(each)],
            taken=self._boundary,
            launches_started=self._launches_started,
            freeze_seconds=thawed - self._frozen_at,
        )

    async def _dump(self, participant: Participant) -> None:
        pod, tools = participant.pod, self._tools
        lifted = rlimits.Lifted((pod.uid, pod.gid) if tools.installation.needs_real_id else None)

        def starting() -> None:
            self._frozen_at = self._frozen_at or time.monotonic()
            faults.at("capture.stopping")

        async def frozen() -> Sequence[str]:
            if reason := await asyncio.to_thread(undo.unknown, participant.images, participant.names):
                raise Doubtful(reason)
            await self._stopped.arrive()
            await self._linking.begin(participant)
            await asyncio.to_thread(lifted.lift, pod.init_pid, participant.images)
            # All keys the tasks were ever given: one that is no longer open does no harm.
            keys = {key for task in pod.tasks.values() for key in task.keys.values() if key.startswith("file[")}
            return sorted(keys)

        async def dumped() -> None:
            lifted.lower()
            await self._linking.written(participant)
            await self._written.arrive()

        target = criu.Target(tools.enter, pod.init_pid, pod.uid, pod.gid, (), pod.groups)
        try:
            await criu.dump(
                tools.installation,
                target,
                pod.leader_pid,
                participant.images,
                tools.limits,
                criu.DumpHooks(starting, frozen, dumped, participant.names),
            )
        except BaseException:
            self._stopped.abort()
            self._written.abort()
            raise
        finally:
            lifted.lower()
            self._linking.end(participant)

    async def _all_stopped(self) -> None:
        """Every rank of every pod stands still. What must be exact is measured while CRIU writes: nothing moves."""
        self._boundary = time.time()
        faults.at("capture.stopped")
        for participant in self.participants:
            name = participant.step.name
            await participant.pod.sync()
            if not participant.pod.running:
                raise Ended(f"the tasks of step {name} have ended")
            if participant.pod.exits:
                raise Unsettled(f"task {min(participant.pod.exits)} of step {name} has just ended")
            if participant.pod.stopping:
                raise Suspended("the job is being suspended")
            # Now, as a task may end as soon as it runs again.
            participant.tasks = task_images(participant.pod)
            # Before CRIU is at them.
            seen, sockets = participant.step.empty_messages, participant.message_sockets
            if lost := await asyncio.to_thread(unixqueues.lost, participant.processes, sockets, seen):
                raise Unsettled(lost)
        await asyncio.to_thread(self._quiesced.check)
        if self._choice.script is not None:
            await self._find_stand_ins(self._choice.script)
        self._measuring = asyncio.create_task(self._measure())
        self._copying = asyncio.create_task(asyncio.to_thread(self._copy.begin))
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
        self._launches_started = script.numbered

    async def _all_written(self) -> None:
        assert self._measuring is not None and self._copying is not None
        await self._measuring
        await self._copying
        faults.at("capture.written")
        for participant in self.participants:
            await participant.pod.sync()
            if participant.pod.stopping:
                raise Suspended("the job is being suspended")
        self._shm = await asyncio.to_thread(self._copy.finish)

    async def _measure(self) -> None:
        faults.at("capture.measure")
        for participant in self.participants:
            # Only what must be exact is taken from this look; whether all can be dumped is CRIU's to say now.
            participant.scan = await asyncio.to_thread(look, participant.step, participant.pod, self._choice, True)
            if participant.scan.moments:
                raise Unsettled(participant.scan.moments[0])
            check_owners(participant.scan, participant.pod.uid)
            if participant.scan.gpus:
                raise Skipped(
                    f"{participant.scan.gpus[0]} has a GPU device open or mapped that did not go with its CUDA state:"
                    " close what else uses the GPU (graphics, a monitor) before a checkpoint"
                )
            await asyncio.to_thread(_note_the_rest, participant, participant.scan)
        if apart := between.connected((each.step.name, each.scan) for each in self.participants if each.scan):
            raise Unsettled(apart)
        await self._drain()
        self.measured = outputs.measure(self._own_holders())
        for participant in self.participants:
            participant.tasks = [with_held(task, participant.step) for task in participant.tasks]
        await self._save_files()

    async def _save_files(self) -> None:
        """What the ranks write themselves. What is printed to its end is an output file, and saved later."""
        pods = [each.pod.init_pid for each in self.participants]
        scans = [each.scan for each in self.participants if each.scan is not None]
        scripts = [each.step.script_file.path for each in self.participants]
        found = await self._saver.save(pods, scans, {holder.identity for _, holder in self.measured}, scripts)
        for participant, files in zip(self.participants, found, strict=True):
            participant.files = files

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
                raise Skipped(
                    f"output on its way did not settle ({drained.reason}): a later checkpoint will do when it is read"
                )
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


def _note_the_rest(participant: Participant, found: PodScan) -> None:
    """What CRIU does not carry, or cannot restore by itself, beside its images (`capture.recreate`)."""
    sysvipc.save(participant.pod.init_pid, participant.images)
    socketdirs.save(found.socket_directories, participant.images)
    cpus = attributes.cpus_of(task.shim_pid for task in participant.step.tasks.values())
    attributes.save(found.processes, cpus, participant.images)
    socketoptions.save(found.processes, participant.images)
    failedsockets.save(found.failed_sockets, participant.images)
    datagrams.save(found.processes, found.datagram_sockets, participant.images)
    multicast.save(participant.pod.init_pid, found.processes, participant.images)
    if found.has_timerfds:
        timerfds.save(participant.images)
    if participant.pod.last_pid:
        pids.save(participant.pod.last_pid, participant.images)


def _common(pipes: Sequence[int], step: Step) -> bytes:
    """What every task of the step still finds in its standard input. Raises Doubtful when they differ."""
    found = script_inputs.common_content(pipes)
    if found is None:
        raise Doubtful(
            f"the tasks of step {step.name} have read different amounts of their common standard input: let one of them"
            " have it (srun --input=TASK), or let them read a file"
        )
    return found
