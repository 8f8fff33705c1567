"""The group checkpoint: prepare -> quiesce -> capture -> resume -> commit -> retain (docs/architecture.md).

Every participant is one pod. Two meetings make the cut: when CRIU has stopped every pod, and when every image is
written. Nothing is dumped before the first, nothing runs before the second. On CPU ranks the freeze itself is the
boundary: both ends of every connection stand still in one dump, so nothing is half done when they go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from slurmckpt import faults
from slurmckpt.capture import criu, linkremaps, sysvipc
from slurmckpt.capture.preflight import PodScan
from slurmckpt.coordinator import between, outputs, shm
from slurmckpt.coordinator.choice import Choice, Doubtful, Ended, Skipped, Unsettled, choose, without_script
from slurmckpt.coordinator.doubts import Doubts
from slurmckpt.coordinator.files.saving import Saver, foresee
from slurmckpt.coordinator.freeze import Captured, Cut, Tools
from slurmckpt.coordinator.gpus import Users
from slurmckpt.coordinator.participant import Participant, check_owners, look, resident_bytes
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.pod_init import PodError
from slurmckpt.coordinator.quiesce import quiesce
from slurmckpt.coordinator.script import stand_ins
from slurmckpt.coordinator.script.script import Script
from slurmckpt.coordinator.script.stand_ins import Underway
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.streams import OutputHolder, files_written_by
from slurmckpt.errors import SlurmckptError
from slurmckpt.store.identity import UserFiles
from slurmckpt.units import format_bytes

__all__ = ["Captured", "Tools", "capture"]


async def capture(
    job_steps: Sequence[Step], script: Script | None, seq: int, tools: Tools, files: UserFiles, doubts: Doubts
) -> Captured:
    """Take one cut of the running steps of a job into staging. script: of the running batch task.

    doubts: of the tries to take this checkpoint. Raises Skipped: staging is clean and all ranks run. Unsettled when it
    may be tried again at once, Doubtful when that is worth one more look.
    """
    began = time.monotonic()
    before = [step for step in job_steps if step.running]
    directory = tools.staging / str(seq)
    holders: list[OutputHolder] = []
    saver = Saver(tools.files, directory, files)
    try:
        choice, scans = await _choose(job_steps, script, doubts)
        participants = [
            Participant(step, step.pod, directory / step.name / "images")
            for step in choice.steps
            if step.pod is not None
        ]
        users = await _prepare(participants, scans, directory, tools, files)
        holders += _holders(job_steps, choice)
        async with quiesce([each.pod for each in participants], tools.shm, tools.gate) as quiesced:
            cut = Cut(participants, choice, holders, directory, tools, saver, quiesced)
            async with tools.gpus.at_rest(users):
                captured = await cut.take()
        # With GPU ranks, from their lock to their unlock.
        captured.freeze_seconds = max(captured.freeze_seconds, users.seconds)
        faults.at("capture.resumed")
        captured.outputs = await outputs.save(cut.measured, directory, files, tools.max_output)
        await saver.finish()
        captured.carried, captured.left = saver.carried, saver.left
        brought = tuple(f"{one.path}/" for one in saver.carried)
        captured.files = [file for file in captured.files if not file.path.startswith(brought)]
        captured.capture_seconds = time.monotonic() - began
        captured.script = choice.script
        captured.without_script = choice.without_script
        return captured
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(error, Underway):
            raise Unsettled(str(error)) from error
        if isinstance(error, (SlurmckptError, OSError)) and not isinstance(error, Skipped):
            # /proc, and CRIU in a pod, say this or that of processes that have ended under them.
            for step in before:
                if step.pod is not None and await _has_ended(step.pod):
                    raise Ended(f"the tasks of step {step.name} have ended") from error
            if _has_gone(error):
                raise Unsettled("a process of the job ended while it was looked at") from error
            if isinstance(error, criu.CriuDied):
                raise Skipped(str(error)) from error
            raise Doubtful(str(error), is_moment=isinstance(error, criu.CriuMoment)) from error
        raise
    finally:
        for holder in holders:
            holder.close()
        await saver.close()


def _has_gone(error: Exception) -> bool:
    """Whether it says that a process was there no more: of a job with many, one may end at any time."""
    return isinstance(error, (FileNotFoundError, ProcessLookupError)) and str(error.filename).startswith("/proc/")


async def _has_ended(pod: Pod) -> bool:
    """Whether all its tasks have; asked of itself, as the news may be on its way."""
    with contextlib.suppress(PodError):
        await pod.sync()
    return not pod.running


async def _choose(steps: Sequence[Step], script: Script | None, doubts: Doubts) -> tuple[Choice, list[PodScan]]:
    """Who takes part, and what a look at each has found."""
    choice = choose(steps, script)
    scans = await _look_at(choice.steps[:1], choice)
    if choice.script is not None and len(choice.steps) > 1 and scans[0].refusals:
        settled = doubts.settled(scans[0].refusals)
        if not settled:
            raise Doubtful(*scans[0].refusals)
        choice, scans = without_script(steps, settled[0]), []
    return choice, scans + await _look_at(choice.steps[len(scans) :], choice)


async def _look_at(steps: Sequence[Step], choice: Choice) -> list[PodScan]:
    """Raises Underway: what an srun holds that comes meanwhile is no reason to leave the script out."""
    script = choice.script
    before = None if script is None else script.coming
    scans = [await asyncio.to_thread(look, step, step.pod, choice) for step in steps if step.pod is not None]
    if script is not None and steps and steps[0].name == "batch" and scans and scans[0].refusals:
        await asyncio.to_thread(stand_ins.check, script, before, scans[0].processes)
    return scans


def _holders(steps: Sequence[Step], choice: Choice) -> list[OutputHolder]:
    """Everything through which output files are written. Dups: a step that ends meanwhile closes its own."""
    writers = [step for step in steps if step.name == "batch" or step in choice.steps]
    holders = [holder.dup() for step in writers for holder in step.streams.files]
    for launch in choice.launches:
        if launch.step:
            holders += files_written_by(launch.pid, f"srun/{launch.step}")
    return holders


async def _prepare(
    participants: Sequence[Participant], scans: Sequence[PodScan], directory: Path, tools: Tools, files: UserFiles
) -> Users:
    """Everything that can be refused is refused here, before any rank is stopped. Gives those with GPU state."""
    faults.at("capture.prepare")
    shutil.rmtree(directory, ignore_errors=True)
    await asyncio.to_thread(linkremaps.clean, tools.shm)
    needed = await asyncio.to_thread(shm.size, tools.shm)
    for participant, found in zip(participants, scans, strict=True):
        participant.images.mkdir(mode=0o700, parents=True)
        if found.refusals:
            raise Doubtful(*found.refusals)
        if found.passing:
            raise Unsettled(found.passing[0])
        check_owners(found, participant.pod.uid)
        participant.links = found.nameless_shm
        participant.names = {process.ns_pid: str(process) for process in found.processes}
        participant.processes, participant.gpu_users = found.processes, found.gpus
        participant.message_sockets = found.message_sockets
        needed += sum(resident_bytes(process.pid) for process in found.processes)
        needed += (await asyncio.to_thread(sysvipc.look, participant.pod.init_pid)).bytes
    if apart := between.connected((each.step.name, found) for each, found in zip(participants, scans, strict=True)):
        raise Unsettled(apart)
    needed += await foresee([each.pod.init_pid for each in participants], scans, tools.files, files)
    users = await tools.gpus.look(participants)
    needed += users.bytes
    free = shutil.disk_usage(directory).free
    if free - needed < tools.reserve:
        raise Skipped(
            f"the staging disk has {format_bytes(free)} free at {tools.staging}; the image needs up to"
            f" {format_bytes(needed)} and {format_bytes(tools.reserve)} must stay free (staging.reserve)"
        )
    return users
