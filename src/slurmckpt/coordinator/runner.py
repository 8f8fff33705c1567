"""Starts each step: restored from the plan, afresh in a pod, or unwrapped when nothing else is possible."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from slurmckpt import faults
from slurmckpt.coordinator import (
    correspondence,
    failures,
    finished,
    gating,
    gpu_launch,
    outputs,
    restoring,
    scriptpaths,
    shm,
    trust,
)
from slurmckpt.coordinator.files.putting_back import take_away
from slurmckpt.coordinator.first_pid import place
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.coordinator.network import JobNetwork
from slurmckpt.coordinator.notices import Notices, say
from slurmckpt.coordinator.plan import Plan
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.pod_init import PodSettings
from slurmckpt.coordinator.podless import end_tasks, run_directly
from slurmckpt.coordinator.returning import Returning
from slurmckpt.coordinator.reunion import Reunion
from slurmckpt.coordinator.script import restart
from slurmckpt.coordinator.script.launch import Launch
from slurmckpt.coordinator.script.reception import Reception
from slurmckpt.coordinator.step import Step, StepNumbers
from slurmckpt.coordinator.streams import OutputHolder, files_written_by
from slurmckpt.coordinator.task import Task
from slurmckpt.errors import Refused, SlurmckptError
from slurmckpt.slurm import nodeconf
from slurmckpt.store.manifest import OutputFile, StepImage
from slurmckpt.units import format_seconds

log = logging.getLogger(__name__)


class _Ending(SlurmckptError):
    """The job is being ended, so nothing of it is to start."""


async def _nobody(step: Step, pod: Pod) -> None:
    pass


async def _never() -> bool:
    return False


class StepRunner:
    """Runs the steps of one incarnation. steps: all steps of the job on this node, by name.

    started: told of each step that runs in a pod, restored or afresh. ending: whether Slurm is ending the job.
    """

    def __init__(
        self,
        incarnation: Incarnation,
        steps: Mapping[str, Step],
        notices: Notices,
        numbers: StepNumbers,
        started: Callable[[Step, Pod], Awaitable[None]] = _nobody,
        ending: Callable[[], Awaitable[bool]] = _never,
    ) -> None:
        self._incarnation = incarnation
        self._steps = steps
        self._notices = notices
        self._numbers = numbers
        self._started = started
        self._ending = ending
        self._returning: Returning | None = None
        self._reception = Reception(incarnation)
        self._network = JobNetwork()

    async def run(self, step: Step, tasks: Sequence[Task]) -> None:
        """From the tasks' arrival to the end of their pod."""
        incarnation = self._incarnation
        returning = self._returning if self._returning and step.name in self._returning.missing else None
        if _is_left_over(step):
            await end_tasks(step, tasks)
            return
        try:
            plan = incarnation.plan
            if plan is not None and plan.manifest.script_status is not None and step.name == "batch":
                step.streams.keep(step.name, tasks[0])
                await finished.end_at_once(incarnation, plan, step, tasks)
                return
            if step.nnodes > 1:
                raise trust.Unwrappable(f"step {step.name} runs on {step.nnodes} nodes")
            groups = [trust.check(task.shim_pid, incarnation.spec.job.uid) for task in tasks]
            for task in tasks:
                step.streams.keep(step.name, task)
            if step.name == "batch":
                number = incarnation.spec.job.job_id
                step.script_file = await incarnation.files.run(scriptpaths.read, tasks[0].program, number)
            if returning is not None:
                await self._come_back(returning, step, tasks, groups[0])
            else:
                async with incarnation.starting:
                    if _is_left_over(step):
                        await end_tasks(step, tasks)
                        return
                    await self._start(step, tasks, groups[0])
            if incarnation.superseded and step.pod is not None:
                step.pod.destroy()
        except restoring.Lost as error:
            log.error(
                "step %s: the tasks are lost, their restore failed when they were about to run: %s", step.name, error
            )
            for task in tasks:
                task.close()
            step.let_anchor_go()
            step.streams.close()
            return
        except Exception as error:  # the shims wait for an answer: whatever it is, they must get one
            if not isinstance(error, (SlurmckptError, OSError)):
                log.exception("step %s", step.name)
            await self._abandon_pod(step)
            if step.name == "batch":
                await self.close_script()
            if returning is not None:
                # It must not run on its own beside a script that comes back from elsewhere.
                log.warning("step %s does not come back: %s", step.name, error)
                text = str(error)
                returning.fail(text if text.startswith("step ") else f"step {step.name}: {text}")
                await end_tasks(step, tasks)
                return
            if incarnation.superseded or isinstance(error, _Ending):
                await end_tasks(step, tasks)
                return
            log.warning("step %s runs unwrapped: %s", step.name, error)
            if step.launch is not None:
                step.launch.outside = f"step {step.name} runs without checkpoints: {error}"
            await say(tasks, f"no checkpoints for step {step.name}: {error}")
            await run_directly(step, tasks)
            return
        if step.pod is not None:
            await self._started(step, step.pod)
            await self._see_to_its_end(step, step.pod)

    async def _start(self, step: Step, tasks: Sequence[Task], groups: Sequence[int]) -> None:
        incarnation = self._incarnation
        await self._leave_out_when_connected(step)
        while (plan := incarnation.plan) is not None and (image := plan.image(step.name)) is not None:
            if step.name != "batch" and not plan.runs_script_again:
                break  # it comes back beside its script or not at all, and this script has begun anew
            untouched = len(plan.open_steps) == len(plan.manifest.steps)
            if image.launches:
                reason = await self._come_back_with_steps(plan, image, step, tasks, groups)
            else:
                reason = correspondence.mismatch(image, step) or await self._try_restore(
                    plan, image, step, tasks, groups
                )
            if not reason:
                return
            if await self._ending():
                # It is that by which the restore has failed. From its top the script would run for a moment only, and
                # do there whatever it does first.
                log.info("step %s is not restored, and not started: Slurm is ending the job (%s)", step.name, reason)
                raise _Ending(reason)
            plan.open_steps.discard(step.name)
            incarnation.planner.refuse(plan.manifest.seq, reason)
            if untouched and len(incarnation.planner.refused) < incarnation.settings.restore.attempts:
                await incarnation.advance()
            else:
                # Once a step has come back from this cut, no other step may come from another one.
                plan.discard()
                await incarnation.start_cold(incarnation.planner.cold_start_reason())
        if incarnation.cold_start is not None:
            self._notices.later(f"cold start: {incarnation.cold_start}")
        if line := gpu_launch.start(step, tasks, incarnation.settings, incarnation.node.fingerprint):
            self._notices.later(line)
        await self._notices.to_starting(tasks)
        pod = self._new_pod(step, groups)
        if step.name == "batch":
            await self._reception.open(pod, tasks[0], None)
        faults.at("start.begin")
        await self._network.build_new(pod, tasks[0].shim_pid)
        step.pod = pod
        await asyncio.to_thread(gating.equip, tasks, pod, incarnation.settings)
        faults.at("start.pod")
        await pod.start(tasks)
        faults.at("start.tasks")
        pod.close_status_pipe()

    async def _come_back_with_steps(
        self, plan: Plan, image: StepImage, step: Step, tasks: Sequence[Task], groups: Sequence[int]
    ) -> str:
        """Restore the batch script together with the steps that it waits for; or the reason why it cannot be."""
        reason = correspondence.mismatch(image, step)
        if reason:
            return reason
        waited_for = {launch.step for launch in image.launches if launch.step and launch.status is None}
        reunion = await Reunion.of(plan)
        returning = Returning(plan, waited_for, self._incarnation.settings.restore.patience, reunion)
        pipes = restart.new_pipes(image)
        watchers: list[asyncio.Task[None]] = []
        brought, directory = False, plan.directory / image.directory

        async def bring_steps(pod: Pod) -> None:
            nonlocal brought
            if brought:
                return
            brought = True
            script = self._incarnation.script
            if script is None:
                raise Refused("this node has no srun that a stand-in may take the place of")
            script.numbered = plan.manifest.launches_started
            for launch in await restart.restart(script, image, directory, pod.init_pid, pipes):
                if launch.renamed:
                    here = self._incarnation.spec.node
                    await self._incarnation.journal.event(f"an srun that names node {launch.renamed} runs on {here}")
                if launch.step:
                    watchers.append(asyncio.create_task(_watch(launch, returning)))

        async def meet(pod: Pod) -> None:
            await bring_steps(pod)
            await returning.meet(pod)

        async def stand(pod: Pod) -> None:
            await bring_steps(pod)
            await returning.stand()

        self._returning = returning
        try:
            lends = partial(restart.lent, image, directory)
            more = restoring.Stand(stand, meet, restart.inherited(image, pipes), lends)
            reason = await self._try_restore(plan, image, step, tasks, groups, more)
            if reason:
                returning.fail(reason)
                await self._let_steps_end(waited_for)
        finally:
            self._returning = None
            # However it ended: nobody must wait for a script that does not come.
            returning.fail("the batch script did not come back")
            for watcher in watchers:
                watcher.cancel()
            for each in pipes.values():
                each.close()
        return reason

    async def _come_back(self, returning: Returning, step: Step, tasks: Sequence[Task], groups: Sequence[int]) -> None:
        """Restore a step beside its script. Raises Refused when it cannot be."""
        plan = returning.plan
        image = plan.image(step.name)
        if image is None:
            raise Refused("it is not in the checkpoint")

        async def stand(_: Pod) -> None:
            returning.missing.discard(step.name)
            await returning.stand()

        reason = correspondence.mismatch(image, step)
        more = restoring.Stand(stand, returning.meet)
        reason = reason or await self._try_restore(plan, image, step, tasks, groups, more)
        if reason:
            raise Refused(reason)

    async def _let_steps_end(self, names: Iterable[str]) -> None:
        """Wait until the steps of a failed restore have left: what starts instead needs their place."""
        for step in [step for step in self._steps.values() if step.name in names]:
            await step.left()

    async def close_script(self) -> None:
        """The batch pod is gone: nobody comes to the desk any more, and its sruns end."""
        await self._reception.close()

    async def _leave_out_when_connected(self, step: Step) -> None:
        """A step that the script reads from or writes to is run again with the script, not restored beside it."""
        incarnation = self._incarnation
        plan = incarnation.plan
        if plan is None or plan.image(step.name) is None or not plan.runs_script_again:
            return
        if step.launch is None or step.launch.is_connected:
            plan.open_steps.discard(step.name)
            text = f"step {step.name} runs again and is not restored: the script reads its output or feeds its input"
            self._notices.later(text)
            await incarnation.journal.event(text)

    async def _try_restore(
        self,
        plan: Plan,
        image: StepImage,
        step: Step,
        tasks: Sequence[Task],
        groups: Sequence[int],
        stand: restoring.Stand | None = None,
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
            self._network,
            incarnation.gpus,
        )
        gpu_launch.come_back(step, tasks, image.gpu)
        borrowed = self._launcher_outputs(step)
        batch = self._steps.get("batch")
        own = [] if batch is None or batch is step else batch.streams.files
        holders = [*step.streams.files, *own, *borrowed]
        had_shm = plan.filled_shm
        undo, before = plan.directory / "undo" / step.name, list[OutputFile]()
        try:
            # The script's own files are undone by the restore of the script: it sees them before any step changes them.
            known = {holder.identity for holder in own} if stand is not None else set()
            changed = [holder for holder in holders if holder.identity not in known]
            before = await outputs.remember(changed, undo, incarnation.files)
            if step.name == "batch":
                await self._reception.open(pod, tasks[0], (image, plan.directory / image.directory))
            notes = await restoring.restore(restorer, plan, image, step, tasks, pod, holders, stand)
        except restoring.Lost:
            pod.destroy()
            await pod.gone()
            raise
        except (SlurmckptError, OSError) as error:
            pod.destroy()
            await pod.gone()
            if step.name == "batch":
                await self.close_script()
            # What starts instead must find the files as it would have without this try.
            with contextlib.suppress(SlurmckptError, OSError):
                await outputs.put_back(before, holders, undo, incarnation.files)
                if plan.filled_shm and not had_shm:
                    plan.filled_shm = False
                    await asyncio.to_thread(shm.clear, incarnation.shm)
                if restorer.traces.directories:
                    plan.filled_carried = False
                await take_away(tasks[0].shim_pid, image.uid, incarnation.files, restorer.traces)
            return await failures.reason(incarnation, "restore", error)
        except BaseException:
            pod.destroy()
            await pod.gone()
            raise
        finally:
            for holder in borrowed:
                holder.close()
        step.pod = pod
        step.restored_from = plan.manifest.seq
        if step.name == "batch":
            self._numbers.started = plan.manifest.steps_started
        seconds = time.monotonic() - began
        log.info("step %s is restored from #%d in %s", step.name, plan.manifest.seq, format_seconds(seconds))
        plan.open_steps.discard(step.name)
        if not plan.open_steps:
            plan.discard()
        if stand is None or step.name == "batch":
            # A script waits for its steps, so its time is that of all.
            await incarnation.journal.restored(plan.manifest, seconds, incarnation.planner.refused)
            incarnation.commands.restored(self._steps.values(), plan.manifest.seq)
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
        self._incarnation.at_end(step)
        step.let_anchor_go()
        step.streams.close()
        if step.name == "batch":
            await self.close_script()
        status = max((task.status for task in pod.tasks.values() if task.status is not None), default=0)
        await journal.step(step.name, step.ntasks, "ended", status)
        plan = self._incarnation.plan
        if step.name == "batch" and plan is not None and plan.open_steps:
            missing = ", ".join(sorted(plan.open_steps))
            await journal.event(f"captured in #{plan.manifest.seq} and not started again by the script: step {missing}")

    def _new_pod(self, step: Step, groups: Sequence[int]) -> Pod:
        incarnation, settings = self._incarnation, self._incarnation.settings
        run = settings.paths.run / str(incarnation.spec.job.job_id)
        pods = PodSettings(
            settings.paths.libexec,
            incarnation.shm,
            run,
            settings.capture.io_uring == "deny",
            nodeconf.signals_children(),
        )
        # Below slurmstepd SIGTERM would reach the ranks at once there, before their last checkpoint.
        outside = "preempt" in incarnation.spec.recover(settings) and nodeconf.preempts_by_parents()
        anchor = None if outside else step.anchor
        job = incarnation.spec.job
        first = place(job.job_id, incarnation.epoch, step.name)
        return Pod(step.name, job.uid, job.gid, groups, pods, anchor=anchor, place=first)

    def _launcher_outputs(self, step: Step) -> list[OutputHolder]:
        return files_written_by(step.launch.pid, f"srun/{step.name}") if step.launch is not None else []


def _is_left_over(step: Step) -> bool:
    """Whether it comes from a restore that failed: what has started instead brings a step of its own."""
    return step.launch is not None and step.launch.killed


async def _watch(launch: Launch, returning: Returning) -> None:
    """An srun that ends before its step stands will not bring it any more."""
    await launch.ended.wait()
    if launch.step in returning.missing:
        returning.fail(f"srun ended before step {launch.step} had started again (wait status {launch.status})")
