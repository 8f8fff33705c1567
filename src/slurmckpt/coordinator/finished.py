"""A script that came to its end while its job was being preempted.

Whatever ends inside the grace time of a preemption counts as preempted for Slurm (_slurm_rpc_complete_batch_script() in
its proc_req.c): it starts the job again, although there is nothing left to do. So a script that ended by itself leaves
a mark: a checkpoint without a step, which says how the script ended and what the job's output was. The next incarnation
puts the output back, which Slurm has truncated, and ends at once in the same way.

Only what is certain counts. A preemption sends SIGTERM to the steps, and a program may end because of it, its state
saved, in the hope of being run again: after any signal to any task there is no mark, and the job goes on from its last
checkpoint. Nor is there one when Slurm was told to run the job again: by `scontrol requeue`, by RequeueExit, by
--requeue=expedite. The mark is used once: who requeues the job after that wants it to run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmckpt import __version__
from slurmckpt.coordinator import outputs
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.coordinator.notices import say
from slurmckpt.coordinator.plan import Plan
from slurmckpt.coordinator.recovery.events import PREEMPTED
from slurmckpt.coordinator.staging import ENDED_SUFFIX
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.streams import OutputHolder
from slurmckpt.coordinator.task import Task
from slurmckpt.errors import SlurmckptError
from slurmckpt.slurm import states
from slurmckpt.slurm.port import JobInfo, SlurmPort
from slurmckpt.store import lease, retention, transfer
from slurmckpt.store.manifest import Manifest, OutputFile

log = logging.getLogger(__name__)

# A job is stopped and continued by them, and a terminal's size is told: nobody ends because of these.
_HARMLESS = frozenset({signal.SIGCONT, signal.SIGWINCH, signal.SIGURG})
_RANGE = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", re.ASCII)


@dataclass
class _End:
    """The script's own end. status: wait status. asked: what Slurm knew of the job right after it."""

    status: int
    measured: list[tuple[OutputFile, OutputHolder]]
    holders: list[OutputHolder]
    asked: asyncio.Task[JobInfo | None]


class ScriptEnd:
    """Watches for the script's end in one incarnation. steps: all of the job on this node, by name."""

    def __init__(self, incarnation: Incarnation, steps: Mapping[str, Step], slurm: SlurmPort | None) -> None:
        self._incarnation = incarnation
        self._steps = steps
        self._slurm = slurm
        self._end: _End | None = None

    def note(self, step: Step) -> None:
        """The pod of this step has ended, and its streams are not closed yet."""
        status = _own_end(step) if step.name == "batch" and self._slurm is not None else None
        if status is None or self._end is not None or not all(map(_undisturbed, self._steps.values())):
            return
        holders = [holder.dup() for holder in step.streams.files]
        try:
            measured = outputs.measure(holders)
        except OSError as error:
            log.warning("the job's output cannot be measured: %s", error)
            _close(holders)
            return
        # At once: soon Slurm will have forgotten that it was about to preempt the job.
        asked = asyncio.create_task(self._ask())
        self._end = _End(status, measured, holders, asked)

    async def settle(self, job: JobInfo | None) -> None:
        """The job has left this node. job: what Slurm says of it now. Leaves the mark where there has to be one.

        Where that fails, the job goes on from its last checkpoint.
        """
        end, self._end = self._end, None
        if end is None:
            return
        try:
            if job is None or not states.coming_back(job.state):
                return
            before = await end.asked
            preempted = bool(job.preempt_time or (before is not None and before.preempt_time))
            # Slurm 24.11 leaves its mark on a job that it preempted at the end of the grace time (GRACE_PREEMPT in its
            # job_mgr.c, seen), and so takes the next end for preempted, too.
            preempted = preempted or self._incarnation.journal.last_outcome == PREEMPTED
            if preempted and not await self._asked_for(end, job):
                await self._leave_mark(end)
            elif not preempted and end.status != 0:
                await self._use_up(end)
        except (SlurmckptError, OSError) as error:
            log.warning("that the script had ended by itself %s is not kept: %s", _shown(end.status), error)
        finally:
            end.asked.cancel()
            _close(end.holders)

    async def _ask(self) -> JobInfo | None:
        if self._slurm is None:
            return None
        try:
            return await self._slurm.job(self._incarnation.spec.job.job_id)
        except SlurmckptError as error:
            log.info("whether the job is being preempted is not known: %s", error)
            return None

    async def _asked_for(self, end: _End, job: JobInfo) -> bool:
        """Whether the site or the user wants a job that ends like this to be run again, preempted or not."""
        code = os.waitstatus_to_exitcode(end.status)
        if code == 0 or self._slurm is None:
            return False
        settings = await self._slurm.config()
        return job.expedite or any(_names(settings.get(key, ""), code) for key in ("RequeueExit", "RequeueExitHold"))

    async def _use_up(self, end: _End) -> None:
        """A script that ended in failure, and that RequeueExit or somebody else brings back.

        The first time it goes on from its last checkpoint, as after any failure. When that led to nothing but the same
        end, it would do so for ever, where the script asks by its exit status to be run again from its top.
        """
        begun = self._incarnation
        seq = begun.journal.without_progress
        if seq is not None:
            await begun.journal.gone(f"when the script, restored from #{seq}, had ended by itself {_shown(end.status)}")
            await retention.remove_all(begun.store, begun.files)

    async def _leave_mark(self, end: _End) -> None:
        begun = self._incarnation
        settings, spec = begun.settings, begun.spec
        # Not the job's own place in staging: its next incarnation may begin there now.
        directory = await asyncio.to_thread(_own_place, settings.staging.path, spec.job.job_id)
        try:
            saved = await outputs.save(end.measured, directory, begun.files, settings.capture.max_output)
            manifest = Manifest(
                product_version=__version__,
                cluster=spec.job.cluster,
                user=spec.job.user,
                uid=spec.job.uid,
                job_id=spec.job.job_id,
                seq=await begun.files.run(begun.store.next_seq),
                epoch=begun.epoch,
                node=spec.node,
                created=time.time(),
                interval=str(spec.interval(settings)),
                freeze_seconds=0.0,
                steps=[],
                outputs=saved,
                fingerprint={},
                node_feature=begun.node.feature,
                attempt=spec.restart_count,
                script_status=end.status,
            )

            async def lease_check() -> None:
                await lease.check(begun.store, begun.files, begun.epoch)

            store = settings.store
            await transfer.publish(
                directory,
                begun.store,
                begun.files,
                manifest,
                begun.node.key,
                store.compression,
                store.level,
                lease_check,
            )
        finally:
            await asyncio.to_thread(shutil.rmtree, directory, True)
        text = f"#{manifest.seq}: the script ended by itself {_shown(end.status)} while the job was being preempted"
        log.info("job %d: %s", spec.job.job_id, text)
        await begun.journal.event(text)


async def end_at_once(incarnation: Incarnation, plan: Plan, step: Step, tasks: Sequence[Task]) -> None:
    """End the batch script, which has not started, as its last incarnation did: `plan` is the mark that it left."""
    status, seq = plan.manifest.script_status, plan.manifest.seq
    assert status is not None, "plan is a mark"
    try:
        for complaint in await outputs.put_back(
            plan.manifest.outputs, step.streams.files, plan.directory, incarnation.files
        ):
            log.warning("step %s: %s", step.name, complaint)
    except OSError as error:
        log.warning("the job's output cannot be put back: %s", error)
    text = (
        f"the script had ended by itself {_shown(status)} when the job was preempted (#{seq}): "
        "it is not run again, and the job ends now"
    )
    log.info("job %d: %s", incarnation.spec.job.job_id, text)
    await say(tasks, text)
    for task in tasks:
        with contextlib.suppress(ConnectionError):
            await task.channel.send("EXIT", [("status", status)])
        task.close()
    step.streams.close()
    # Whoever requeues the job from now on wants it to run.
    with contextlib.suppress(SlurmckptError):
        await retention.remove(incarnation.store, incarnation.files, [seq])
    incarnation.plan = None
    plan.discard()
    await incarnation.journal.event(text)
    await incarnation.journal.step(step.name, step.ntasks, "ended", status)


def _own_end(step: Step) -> int | None:
    """The wait status of a script that ended by itself, by exit; None for any other end."""
    found = [] if step.pod is None else [task.status for task in step.pod.tasks.values()]
    status = found[0] if len(found) == 1 else None
    return status if status is not None and os.WIFEXITED(status) else None


def _undisturbed(step: Step) -> bool:
    """Whether no signal reached a task of this step, and none died of one. Of an unwrapped step that is not known."""
    if step.pod is None or step.pod.signalled - _HARMLESS:
        return False
    return not any(task.status is not None and os.WIFSIGNALED(task.status) for task in step.pod.tasks.values())


def _own_place(staging: Path, job_id: int) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{job_id}.", suffix=ENDED_SUFFIX, dir=staging))


def _names(expression: str, code: int) -> bool:
    """Whether a list such as `1-3,99` (RequeueExit) names this exit code. What is not understood names all."""
    for part in filter(None, expression.split(",")):
        match = _RANGE.fullmatch(part.strip())
        if match is None or int(match[1]) <= code <= int(match[2] or match[1]):
            return True
    return False


def _close(holders: list[OutputHolder]) -> None:
    while holders:
        holders.pop().close()


def _shown(status: int) -> str:
    return f"with status {os.waitstatus_to_exitcode(status)}"
