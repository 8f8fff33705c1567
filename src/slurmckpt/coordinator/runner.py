"""Starts each step: restored from the plan, afresh in a pod, or unwrapped when nothing else is possible."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence

from slurmckpt.coordinator import launchers, outputs, restoring, scriptfile, shm, trust
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.coordinator.notices import Notices, say
from slurmckpt.coordinator.plan import Plan
from slurmckpt.coordinator.pod import Pod, PodSettings
from slurmckpt.coordinator.step import Step, StepNumbers
from slurmckpt.coordinator.streams import OutputHolder
from slurmckpt.coordinator.task import Task
from slurmckpt.errors import SlurmckptError
from slurmckpt.store.manifest import FinishedStep, OutputFile, StepImage
from slurmckpt.units import format_seconds

log = logging.getLogger(__name__)


class StepRunner:
    """Runs the steps of one incarnation. steps: all steps of the job on this node, by name."""

    def __init__(
        self, incarnation: Incarnation, steps: Mapping[str, Step], notices: Notices, numbers: StepNumbers
    ) -> None:
        self._incarnation = incarnation
        self._steps = steps
        self._notices = notices
        self._numbers = numbers
        # One step at a time chooses its checkpoint and puts files back.
        self._starting = asyncio.Lock()

    async def run(self, step: Step, tasks: Sequence[Task]) -> None:
        """From the tasks' arrival to the end of their pod."""
        incarnation = self._incarnation
        try:
            if step.nnodes > 1:
                raise trust.Unwrappable(f"step {step.name} runs on {step.nnodes} nodes")
            groups = [trust.check(task.shim_pid, incarnation.spec.job.uid) for task in tasks]
            for task in tasks:
                step.streams.keep(step.name, task)
            if step.name == "batch":
                step.script_file = await incarnation.files.run(scriptfile.read, tasks[0].program)
            async with self._starting:
                await self._start(step, tasks, groups[0])
        except Exception as error:  # the shims wait for an answer: whatever it is, they must get one
            if not isinstance(error, (SlurmckptError, OSError)):
                log.exception("step %s", step.name)
            log.warning("step %s runs unwrapped: %s", step.name, error)
            await self._abandon_pod(step)
            await say(tasks, f"no checkpoints for step {step.name}: {error}")
            await run_directly(step, tasks)
            return
        if step.pod is not None:
            await self._see_to_its_end(step, step.pod)

    async def _start(self, step: Step, tasks: Sequence[Task], groups: Sequence[int]) -> None:
        incarnation = self._incarnation
        await self._leave_out_when_connected(step)
        while (plan := incarnation.plan) is not None and (image := plan.image(step.name)) is not None:
            untouched = len(plan.open_steps) == len(plan.manifest.steps)
            plan.open_steps.discard(step.name)
            reason = restoring.mismatch(image, step) or await self._try_restore(plan, image, step, tasks, groups)
            if not reason:
                return
            incarnation.planner.refuse(plan.manifest.seq, reason)
            if untouched and len(incarnation.planner.refused) < incarnation.settings.restore.attempts:
                await incarnation.advance()
            else:
                # Once a step has come back from this cut, no other step may come from another one.
                plan.discard()
                await incarnation.start_cold(incarnation.planner.cold_start_reason())
        if incarnation.cold_start is not None:
            self._notices.later(f"cold start: {incarnation.cold_start}")
        await self._notices.to_starting(tasks)
        pod = self._new_pod(step, groups)
        await pod.build(tasks[0].shim_pid, "keep")
        step.pod = pod
        step.connected = await asyncio.to_thread(self._is_connected, step)
        await pod.start(tasks)
        pod.close_status_pipe()

    async def _leave_out_when_connected(self, step: Step) -> None:
        """A step that the script reads from or writes to is run again with the script, not restored beside it."""
        incarnation = self._incarnation
        plan = incarnation.plan
        if plan is None or plan.image(step.name) is None or not plan.runs_script_again:
            return
        if await asyncio.to_thread(self._is_connected, step):
            plan.open_steps.discard(step.name)
            text = f"step {step.name} runs again and is not restored: the script reads its output or feeds its input"
            self._notices.later(text)
            await incarnation.journal.event(text)

    async def _try_restore(
        self, plan: Plan, image: StepImage, step: Step, tasks: Sequence[Task], groups: Sequence[int]
    ) -> str:
        """Restore a step; or the reason why it cannot be, and then nothing of the try is left."""
        incarnation = self._incarnation
        began = time.monotonic()
        pod = self._new_pod(step, groups)
        restorer = restoring.Restorer(
            incarnation.node.installation,
            incarnation.enter,
            incarnation.shm,
            incarnation.files,
            incarnation.settings.restore.pasta,
        )
        borrowed = self._launcher_outputs(step)
        batch = self._steps.get("batch")
        own = [] if batch is None or batch is step else batch.streams.files
        holders = [*step.streams.files, *own, *borrowed]
        had_shm = plan.filled_shm
        undo, before = plan.directory / "undo" / step.name, list[OutputFile]()
        try:
            before = await outputs.remember(holders, undo, incarnation.files)
            notes = await restoring.restore(restorer, plan, image, step, tasks, pod, holders)
        except (SlurmckptError, OSError) as error:
            pod.destroy()
            await pod.gone()
            # What starts instead must find the files as it would have without this try.
            with contextlib.suppress(SlurmckptError, OSError):
                await outputs.put_back(before, holders, undo, incarnation.files)
                if plan.filled_shm and not had_shm:
                    plan.filled_shm = False
                    await asyncio.to_thread(shm.clear, incarnation.shm)
            return str(error)
        except BaseException:
            pod.destroy()
            await pod.gone()
            raise
        finally:
            for holder in borrowed:
                holder.close()
        step.pod = pod
        step.connected = False
        step.restored_from = plan.manifest.seq
        if step.name == "batch":
            self._numbers.started = plan.manifest.steps_started
        seconds = time.monotonic() - began
        log.info("step %s is restored from #%d in %s", step.name, plan.manifest.seq, format_seconds(seconds))
        if not plan.open_steps:
            plan.discard()
        await incarnation.journal.restored(plan.manifest, seconds, incarnation.planner.refused)
        for note in notes:
            await incarnation.journal.event(f"step {step.name}: {note}")
        return ""

    async def _abandon_pod(self, step: Step) -> None:
        """End a pod whose tasks could not be started. Those that are its already end with it; the others are told."""
        pod, step.pod = step.pod, None
        if pod is not None:
            pod.destroy()
            await pod.gone()

    async def _see_to_its_end(self, step: Step, pod: Pod) -> None:
        journal = self._incarnation.journal
        await journal.step(step.name, step.ntasks, "running", None)
        await pod.ended.wait()
        await pod.gone()
        step.streams.close()
        statuses = [task.status for task in pod.tasks.values() if task.status is not None]
        status = max(statuses, default=0)
        if len(statuses) == len(pod.tasks):
            self._incarnation.finished.append(FinishedStep(step.name, step.argv_digest, status, not step.connected))
        await journal.step(step.name, step.ntasks, "ended", status)
        plan = self._incarnation.plan
        if step.name == "batch" and plan is not None and plan.open_steps:
            missing = ", ".join(sorted(plan.open_steps))
            await journal.event(f"captured in #{plan.manifest.seq} and not started again by the script: step {missing}")

    def _new_pod(self, step: Step, groups: Sequence[int]) -> Pod:
        incarnation, settings = self._incarnation, self._incarnation.settings
        run = settings.paths.run / str(incarnation.spec.job.job_id)
        pods = PodSettings(settings.paths.libexec, incarnation.shm, run, settings.capture.io_uring == "deny")
        return Pod(step.name, incarnation.spec.job.uid, incarnation.spec.job.gid, groups, pods)

    def _launcher_outputs(self, step: Step) -> list[OutputHolder]:
        batch = self._steps.get("batch")
        if batch is None or batch is step or batch.pod is None or not batch.running:
            return []
        return [holder for launcher in launchers.find(batch.pod) for holder in launcher.outputs()]

    def _is_connected(self, step: Step) -> bool:
        """Whether the script reads this step's output or feeds its input: then a repeated script must run it again."""
        batch = self._steps.get("batch")
        if batch is None or batch is step or batch.pod is None:
            return True
        found = launchers.find(batch.pod)
        return not found or any(launcher.is_connected() for launcher in found)


async def run_directly(step: Step, tasks: Sequence[Task]) -> None:
    """Fail open: every shim executes its task itself."""
    step.streams.close()
    for task in tasks:
        with contextlib.suppress(ConnectionError):
            await task.run_directly()
