"""One job on this node, from the prolog to the epilog. Whatever fails here, the job itself runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections import deque
from typing import Any

from slurmckpt import faults
from slurmckpt.capture import procfs
from slurmckpt.config import Settings
from slurmckpt.coordinator import fence, gating, incarnation, leftovers, rules, scriptpaths, shm
from slurmckpt.coordinator.checkpoints import Checkpointer
from slurmckpt.coordinator.choice import Skipped
from slurmckpt.coordinator.finished import ScriptEnd
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.coordinator.notices import PREFIX, Notices
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.podless import end_tasks, run_directly
from slurmckpt.coordinator.recovery import events
from slurmckpt.coordinator.recovery.watch import Recovery
from slurmckpt.coordinator.runner import StepRunner
from slurmckpt.coordinator.script.launch import Launch
from slurmckpt.coordinator.spec import JobSpec
from slurmckpt.coordinator.step import Step, StepNumbers
from slurmckpt.coordinator.stops import Stops
from slurmckpt.coordinator.task import Hello
from slurmckpt.coordinator.waitingprolog import WaitingProlog
from slurmckpt.coordinator.wire import Channel
from slurmckpt.errors import SlurmckptError
from slurmckpt.slurm import states
from slurmckpt.slurm.port import JobInfo, SlurmPort
from slurmckpt.store import lease, retention
from slurmckpt.store.manifest import Manifest

log = logging.getLogger(__name__)

# Epilog and EpilogSlurmctld run meanwhile, each for some seconds at most, unless the site's own take longer.
_DECISION_SECONDS = 30.0
_LOOK_SECONDS = 0.5
_KEPT_STEPS = 100
_TERMINAL = "no checkpoints for steps with a terminal (srun --pty)"


class Job:
    """Ties the parts together: steps, their runner, the checkpointer, and the end."""

    def __init__(self, spec: JobSpec, settings: Settings, slurm: SlurmPort | None, declined: str = "") -> None:
        """declined: why this job runs without checkpoints, when that is known already."""
        self.spec = spec
        self.settings = settings
        self.run_directory = settings.paths.run / str(spec.job.job_id)
        self.steps: dict[str, Step] = {}
        self._over: deque[str] = deque()
        self._forgotten: set[str] = set()
        self.notices = Notices()
        self._numbers = StepNumbers()
        self._slurm = slurm
        self._incarnation: Incarnation | None = None
        self._runner: StepRunner | None = None
        self._checkpointer: Checkpointer | None = None
        self._script_end: ScriptEnd | None = None
        self._recovery: Recovery | None = None
        self._declined = ""
        self._ready = asyncio.Event()
        # Then nothing is left to do here, and no epilog may ever come: for slurmctld the job is not on this node.
        self.superseded = asyncio.Event()
        self._working: set[asyncio.Task[None]] = set()
        self._beside: list[asyncio.Task[None]] = []
        self._opening: asyncio.Task[None] | None = None
        self._stopping = False
        if declined:
            self.decline(declined)
            self._ready.set()

    async def open(self, prolog: WaitingProlog | None = None) -> None:
        """Take the lease, choose the checkpoint to go on from, start the timer. Or decline, with the reason.

        prolog: waits for the lease, and for no longer than this takes.
        """
        try:
            if not self._declined and not self._stopping:
                await self._open(prolog)
        finally:
            if prolog is not None:
                prolog.let_go()

    async def _open(self, prolog: WaitingProlog | None) -> None:
        self._opening = asyncio.current_task()
        asking = asyncio.create_task(rules.look(self._slurm, self.spec))
        try:
            faults.at("open.begin")
            begun = await incarnation.begin(self.spec, self.settings, asking, prolog)
            for remark in (await asking).remarks:
                self.notices.later(remark)
            self._script_end = ScriptEnd(begun, self.steps, self._slurm)
            begun.at_end = self._script_end.note
            self._incarnation = begun
            self._checkpointer = Checkpointer(
                begun, self.steps, self.notices, self._slurm, self._superseded, self._numbers
            )
            self._recovery = Recovery(begun, self.steps, self.notices, self._slurm, self._checkpointer, self._numbers)
            self._runner = StepRunner(
                begun, self.steps, self.notices, self._numbers, self._recovery.watch, self._recovery.job_is_ending
            )
            fenced = fence.watch(begun.store, begun.epoch, self.settings.store.lease_watch, self._superseded)
            works = (self._checkpointer.keep_time(), fenced, Stops(self.steps).watch(), *self._recovery.works())
            self._beside = [self._work(work) for work in works]
        except rules.Pointless as error:
            self.decline(str(error), error.quiet)
        except Exception as error:  # the tasks wait for us: whatever it is, they must run
            if not isinstance(error, (SlurmckptError, OSError)):
                log.exception("job %d", self.spec.job.job_id)
            self.decline(str(error) or type(error).__name__)
        finally:
            asking.cancel()
            self._ready.set()

    def decline(self, reason: str, quiet: bool = False) -> None:
        """Run this job without checkpoints; its first task says why, but for a quiet one."""
        log.log(logging.INFO if quiet else logging.WARNING, "job %d: no checkpoints: %s", self.spec.job.job_id, reason)
        self._declined = reason
        if not quiet:
            self.notices.later(f"no checkpoints for this job: {reason}")

    def step_of(self, hello: Hello) -> Step | None:
        """The step that a task belongs to; None when it came too late to be part of its pod."""
        if self._stopping or hello.step_name in self._forgotten:
            return None
        step = self.steps.get(hello.step_name)
        if step is None:
            step = self.steps[hello.step_name] = self._new_step(hello)
            self._work(self._live(hello.step_name, step))
        return None if step.closed else step

    async def leave_alone(self, step: Step | None, channel: Channel) -> None:
        """A task of this step has a terminal (srun --pty): it runs unwrapped. The first one of the job says so."""
        if step is not None:
            step.interactive = True
            if step.launch is not None:
                step.launch.outside = "a step of it has a terminal (srun --pty)"
        await self._ready.wait()
        if not self._declined and self.notices.first(_TERMINAL):
            await channel.send("SAY", [("text", PREFIX + _TERMINAL)])
        await channel.send("DIRECT")

    def runs_outside(self, hello: Hello) -> None:
        """A task that its user wants unwrapped: while it runs, its script cannot be captured."""
        launch = self._launch_of(hello)
        if launch is not None:
            launch.outside = "a step of it runs with --checkpoint-interval=off"

    def _new_step(self, hello: Hello) -> Step:
        launch = self._launch_of(hello)
        # One that is restored has its name from the checkpoint.
        name = launch.step if launch is not None and launch.step else self._numbers.name(hello)
        if launch is not None:
            launch.step = name
        return Step.of(hello, name, launch)

    def _launch_of(self, hello: Hello) -> Launch | None:
        return self._incarnation.marks.bind(hello) if self._incarnation is not None else None

    def holds(self, pid: int) -> bool:
        """Whether a process of this node runs in a pod of this job."""
        namespace = procfs.link(f"{procfs.PROC}/{pid}/ns/pid")
        return namespace is not None and any(
            namespace == procfs.link(f"{procfs.PROC}/{pod.init_pid}/ns/pid") for pod in self._pods()
        )

    async def checkpoint(self) -> Manifest:
        """Take a group checkpoint now. Raises Skipped with the reason when none is taken."""
        await self._ready.wait()
        if self._checkpointer is None:
            raise Skipped(f"no checkpoints for this job: {self._declined}")
        return await self._checkpointer.take()

    async def stop(self) -> None:
        """End every pod and leave nothing of the job on this node. What concerns the store follows in settle()."""
        self._stopping = True
        faults.at("stop.begin")
        # The pods first: a CRIU that works in one ends with it, and need not be waited for.
        for pod in self._pods():
            pod.destroy()
        working = {*self._working, *([self._opening] if self._opening is not None else [])}
        for work in working:
            work.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        if self._recovery is not None:
            await self._recovery.end()
        await self._end_pods()
        if self._runner is not None:
            await self._runner.close_script()
        for step in self.steps.values():
            step.let_anchor_go()
        faults.at("stop.pods")
        if self._incarnation is not None:
            shutil.rmtree(self._incarnation.staging, ignore_errors=True)
        scriptpaths.remove(self.run_directory)
        with contextlib.suppress(shm.ShmError):
            shm.unmount(self.run_directory / "shm")

    async def settle(self) -> None:
        """After the job's end: what the store keeps depends on how the job ended for Slurm."""
        begun = self._incarnation
        if begun is None:
            return
        faults.at("settle.begin")
        if self._checkpointer is not None:
            await self._checkpointer.feature.settled()
        # LeaseLost: record and checkpoints are those of a newer incarnation now.
        with contextlib.suppress(SlurmckptError, OSError):
            await lease.check(begun.store, begun.files, begun.epoch)
            await begun.journal.stopped()
            info = await self._info()
            state = frozenset() if info is None else info.state
            await lease.check(begun.store, begun.files, begun.epoch)
            preempted = self._recovery is not None and self._recovery.preempted
            await begun.journal.ended(_outcome(state, preempted))
            if self._script_end is not None:
                await self._script_end.settle(info)
            if states.over(state):
                await begun.journal.gone(f"when it had ended ({_outcome(state, preempted)})")
                await retention.remove_all(begun.store, begun.files)
            await retention.forget(begun.store, begun.files, self.settings.store.record_days)
            if self._slurm is not None:
                await leftovers.sweep(begun.store, begun.files, self._slurm)
        # All that was asked of it is done, or it hangs in a store that does not answer.
        begun.files.close(wait=False)

    async def _info(self) -> JobInfo | None:
        """What Slurm says of the job once it has decided what becomes of it; None when that is not known."""
        if self._slurm is None:
            return None
        deadline = time.monotonic() + _DECISION_SECONDS
        try:
            while True:
                info = await self._slurm.job(self.spec.job.job_id)
                if not states.undecided(info.state) or time.monotonic() > deadline:
                    return info
                await asyncio.sleep(_LOOK_SECONDS)
        except SlurmckptError as error:
            log.warning("job %d: its state is not known, so its checkpoints stay: %s", self.spec.job.job_id, error)
            return None

    def status(self) -> dict[str, Any]:
        """What `slurmckpt status` asks of a running coordinator."""
        begun = self._incarnation
        return {
            "job_id": self.spec.job.job_id,
            "node": self.spec.node,
            "interval": str(self.spec.interval(self.settings)),
            "epoch": begun.epoch if begun else None,
            "declined": self._declined or None,
            "time": time.time(),
            "steps": [
                {"step": step.name, "ntasks": step.ntasks, "running": step.running, "restored_from": step.restored_from}
                for step in self.steps.values()
            ],
            **gating.document(self.steps.values()),
        }

    async def _live(self, name: str, step: Step) -> None:
        """From its first task to its end. A script may start very many: old ones are forgotten then."""
        await self._run(step)
        self._over.append(name)
        while len(self._over) > _KEPT_STEPS:
            old = self._over.popleft()
            launch = self.steps[old].launch
            if launch is not None and not launch.ended.is_set():
                self._over.append(old)  # a cut asks what became of the step of an srun
                return
            del self.steps[old]
            self._forgotten.add(old)

    async def _run(self, step: Step) -> None:
        tasks = await step.gather()
        await self._ready.wait()
        if not tasks:
            return
        if self._incarnation is not None and self._incarnation.superseded:
            await end_tasks(step, tasks)
        elif step.interactive:
            await run_directly(step, tasks)
        elif self._declined or self._runner is None:
            await self.notices.to_starting(tasks)
            await run_directly(step, tasks)
        else:
            await self._runner.run(step, tasks)

    async def _superseded(self, reason: str) -> None:
        """A newer incarnation runs elsewhere: this one was given up for dead, publishes nothing and ends."""
        assert self._incarnation is not None and self._checkpointer is not None
        first = not self._incarnation.superseded
        self._incarnation.superseded = self._declined = reason
        self._checkpointer.abandon()
        if not first:
            return
        log.error("job %d: %s; what runs of it here is ended", self.spec.job.job_id, reason)
        for work in self._beside:
            if work is not asyncio.current_task():
                work.cancel()
        await asyncio.gather(*(fence.kill(pod) for pod in self._pods()))
        self._work(self._leave())

    async def _leave(self) -> None:
        await fence.until_slurm_knows(self._pods())
        self.superseded.set()

    def _pods(self) -> list[Pod]:
        return [step.pod for step in self.steps.values() if step.pod is not None]

    async def _end_pods(self) -> None:
        pods = self._pods()
        for pod in pods:
            pod.destroy()
        for pod in pods:
            await pod.gone()

    def _work(self, coroutine: Any) -> asyncio.Task[None]:
        work: asyncio.Task[None] = asyncio.create_task(coroutine)
        self._working.add(work)
        work.add_done_callback(self._worked)
        return work

    def _worked(self, work: asyncio.Task[None]) -> None:
        self._working.discard(work)
        if not work.cancelled() and (error := work.exception()) is not None:
            log.error("job %d", self.spec.job.job_id, exc_info=error)


def _outcome(state: frozenset[str], preempted: bool) -> str:
    """How an incarnation ended, in a word or two for `slurmckpt status`."""
    if states.coming_back(state):
        return events.PREEMPTED if preempted else "requeued"
    return " ".join(sorted(state - {"COMPLETING"})) or "unknown"
