"""Takes group checkpoints: by the timer and on request, one at a time, and commits them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import shutil
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

from slurmckpt import __version__
from slurmckpt.capture import criu
from slurmckpt.coordinator import failures, group, node, schedule
from slurmckpt.coordinator.choice import Doubtful, Ended, Skipped, Suspended, Unsettled
from slurmckpt.coordinator.doubts import PAUSE_SECONDS, Doubts
from slurmckpt.coordinator.featurenote import FeatureNote
from slurmckpt.coordinator.files.rules import Rules, Surroundings, surroundings
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.coordinator.notices import Notices
from slurmckpt.coordinator.skips import Skips, kind
from slurmckpt.coordinator.step import Step, StepNumbers
from slurmckpt.coordinator.suspension import suspended
from slurmckpt.errors import SlurmckptError
from slurmckpt.slurm.port import SlurmPort
from slurmckpt.store import lease, retention, transfer
from slurmckpt.store.manifest import Manifest
from slurmckpt.units import format_bytes, format_seconds

log = logging.getLogger(__name__)

# An srun that comes or goes takes a moment. Where one short srun follows the other, the moment between is found sooner
# or later; the pauses are not all alike, so that they do not keep step with the script.
_SETTLE_SECONDS = 10.0
_RETRY_SECONDS = (0.02, 0.15)
_REMEMBERED = 5
# How late a suspension, or its end, may be noticed.
_LOOK_SECONDS = 1.0


class Checkpointer:
    """The checkpoints of one incarnation. lost: called when a newer incarnation of the job runs: this one must end.

    one_at_a_time: whoever holds it keeps checkpoints from being taken. newest: the one to go back to, None before the
    first. seconds: what the last ones took from their start to their commit. committed: told of each. feature: what the
    controller is told of each.
    """

    def __init__(
        self,
        incarnation: Incarnation,
        steps: Mapping[str, Step],
        notices: Notices,
        slurm: SlurmPort | None,
        lost: Callable[[str], Awaitable[None]],
        numbers: StepNumbers,
    ) -> None:
        self._incarnation = incarnation
        self._steps = steps
        self._notices = notices
        self._lost = lost
        self._numbers = numbers
        self.feature = FeatureNote(slurm, incarnation.spec.job.job_id, incarnation.node.feature)
        self.one_at_a_time = asyncio.Lock()
        self.newest: Manifest | None = None
        self.seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self.committed: list[Callable[[Manifest], Awaitable[None]]] = []
        plan = incarnation.plan
        # What is known of the job from its earlier incarnation, until there is something newer.
        self._cost = plan.manifest.freeze_seconds if plan is not None else None
        self._said: set[str] = set()
        self._skips = Skips(incarnation.spec.job.job_id, incarnation.journal, notices)
        self._under_way: asyncio.Task[Manifest] | None = None
        self._taken = 0
        self._called_off = 0
        self._around: Surroundings | None = None
        # Which files these are may change with each checkpoint.
        self._has_told_left = False

    async def keep_time(self) -> None:
        """Take checkpoints by the timer, until cancelled."""
        incarnation, spread = self._incarnation, random.Random()
        interval, first = incarnation.spec.interval(incarnation.settings), True
        while True:
            pause = schedule.seconds_until_next(interval, incarnation.settings.schedule, self._cost, spread, first)
            if pause is None:
                return
            first = False
            await self._pass(pause)
            if any(step.running for step in self._steps.values()):
                try:
                    await self.take()
                except Skipped:
                    pass  # reported by take()
                except lease.LeaseLost:
                    return  # this incarnation is over
                except Exception:  # a fault of ours in one checkpoint must not cost the job those after it
                    log.exception("job %d: no checkpoint", incarnation.spec.job.job_id)

    async def _pass(self, seconds: float) -> None:
        """Wait for as long since the last checkpoint, be it by request. While the job is suspended, no time passes."""
        clock = asyncio.get_running_loop().time
        left, taken = seconds, self._taken
        while left > 0:
            before = clock()
            await asyncio.sleep(min(left, _LOOK_SECONDS))
            if self._taken != taken:
                left, taken = seconds, self._taken
            elif not suspended(self._steps.values()):
                left -= clock() - before

    @contextlib.contextmanager
    def called_off(self) -> Iterator[None]:
        """Within, no checkpoint waits for a better moment: who goes back to the last one cannot wait for it."""
        self._called_off += 1
        try:
            yield
        finally:
            self._called_off -= 1

    def abandon(self) -> None:
        """A newer incarnation runs: give up the checkpoint under way. take() then raises lease.LeaseLost."""
        if self._under_way is not None:
            self._under_way.cancel()

    async def take(self) -> Manifest:
        """Take one now.

        Raises Skipped with the reason when none is taken, lease.LeaseLost when a newer incarnation runs.
        """
        async with self.one_at_a_time:
            if suspended(self._steps.values()):
                raise Suspended("the job is suspended")
            try:
                self._under_way = asyncio.create_task(self._take())
                return await self._under_way
            except asyncio.CancelledError:
                if self._incarnation.superseded:
                    raise lease.LeaseLost(self._incarnation.superseded) from None
                raise
            except lease.LeaseLost as error:
                await self._lost(str(error))
                raise
            except (Suspended, Ended):
                raise
            except Exception as error:
                if not isinstance(error, (SlurmckptError, OSError)):
                    log.exception("job %d: no checkpoint", self._incarnation.spec.job.job_id)
                reason = await failures.reason(self._incarnation, "dump", error)
                await self._skips.one(reason, self._steps.values())
                raise Skipped(reason) from error
            finally:
                self._under_way = None
                self._taken += 1

    async def _take(self) -> Manifest:
        incarnation = self._incarnation
        await self._check_lease()
        known = self.newest.seq if self.newest is not None else 0
        seq = max(await incarnation.files.run(incarnation.store.next_seq), incarnation.disowned + 1, known + 1)
        began = time.monotonic()
        captured = await incarnation.commands.around(self._steps.values(), seq, lambda: self._capture(seq))
        # With the commands before and after it.
        captured_in = time.monotonic() - began
        self._cost = captured.freeze_seconds
        if captured.without_script:
            await self._say_once(
                f"the batch script is not captured and will run again from its top: {captured.without_script}"
            )
        if captured.left and not self._has_told_left:
            self._has_told_left = True
            await self._say_once(captured.left)
        try:
            began = time.monotonic()
            manifest = await self._publish(captured.directory, await self._manifest(seq, captured))
            committed = time.monotonic() - began
        finally:
            await asyncio.to_thread(shutil.rmtree, captured.directory, True)
        log.info(
            "job %d: checkpoint #%d of %s, frozen for %s, committed in %s",
            manifest.job_id,
            seq,
            format_bytes(sum(file.size for file in manifest.files)),
            format_seconds(manifest.freeze_seconds),
            format_seconds(committed),
        )
        await incarnation.journal.checkpoint(manifest, captured.capture_seconds, committed)
        keep = incarnation.spec.options.keep or incarnation.settings.store.keep
        try:
            await retention.prune(incarnation.store, incarnation.files, keep, set())
        except (SlurmckptError, OSError) as error:
            # This one is committed all the same.
            log.warning("job %d: %s", manifest.job_id, error)
            await incarnation.journal.event(str(error))
        await self._skips.over()
        self.newest = manifest
        self.seconds.append(max(captured.capture_seconds, captured_in) + committed)
        for told in self.committed:
            await told(manifest)
        self.feature.begin()
        return manifest

    async def _check_lease(self) -> None:
        incarnation = self._incarnation
        try:
            await lease.check(incarnation.store, incarnation.files, incarnation.epoch)
        except lease.DirectoryGone as error:
            await lease.renew(incarnation.store, incarnation.files, incarnation.spec.node, incarnation.epoch)
            await incarnation.journal.event(f"{error}, with the checkpoints in it, and made anew")

    async def _capture(self, seq: int) -> group.Captured:
        """Again a little later while an srun or a step comes or goes: one that begins needs the lock in between.

        And when it is refused, until that has been seen again (`doubts`).
        """
        incarnation = self._incarnation
        if self._around is None:
            self._around = await incarnation.files.run(surroundings, incarnation.spec.job.uid, incarnation.store.dir)
        clock = asyncio.get_running_loop().time
        given_up, doubts = clock() + _SETTLE_SECONDS, Doubts(clock)
        while True:
            try:
                async with incarnation.starting:
                    # Who comes after this and before the boundary makes it unsettled.
                    started = self._numbers.started
                    captured = await group.capture(
                        list(self._steps.values()), incarnation.script, seq, self._tools(), incarnation.files, doubts
                    )
                    captured.steps_started = started
                    return captured
            except Unsettled:
                if clock() > given_up or self._called_off:
                    raise
                pause = random.uniform(*_RETRY_SECONDS)
            except Doubtful as error:
                if self._called_off:
                    raise
                if settled := doubts.settled(error.reasons, error.is_moment):
                    raise Doubtful(*settled) from error
                pause = PAUSE_SECONDS
                doubts.look_again()
            await asyncio.sleep(pause)

    def _tools(self) -> group.Tools:
        incarnation, settings = self._incarnation, self._incarnation.settings
        return group.Tools(
            installation=incarnation.node.installation,
            limits=criu.Limits(int(settings.capture.timeout), settings.capture.ghost_limit),
            enter=incarnation.enter,
            staging=incarnation.staging,
            reserve=settings.staging.reserve,
            shm=incarnation.shm,
            max_output=settings.capture.max_output,
            gate=settings.gate,
            files=Rules(
                settings.files,
                incarnation.spec.job.uid,
                self._around.home if self._around is not None else "",
                incarnation.staging,
                self._around.shared if self._around is not None else (),
                incarnation.journal.began,
            ),
            gpus=incarnation.gpus,
        )

    async def _manifest(self, seq: int, captured: group.Captured) -> Manifest:
        incarnation = self._incarnation
        spec = incarnation.spec
        script = captured.script
        mounted = {script.surroundings.program: script.stand_in} if script is not None else {}
        fingerprint = await incarnation.files.run(node.job_fingerprint, incarnation.node, spec, captured.files, mounted)
        return Manifest(
            product_version=__version__,
            cluster=spec.job.cluster,
            user=spec.job.user,
            uid=spec.job.uid,
            job_id=spec.job.job_id,
            seq=seq,
            epoch=incarnation.epoch,
            node=spec.node,
            created=captured.taken,
            interval=str(spec.interval(incarnation.settings)),
            freeze_seconds=captured.freeze_seconds,
            steps=captured.steps,
            outputs=captured.outputs,
            carried=captured.carried,
            fingerprint=fingerprint,
            node_feature=incarnation.node.feature,
            attempt=spec.restart_count,
            steps_started=captured.steps_started,
            launches_started=captured.launches_started,
        )

    async def _publish(self, directory: Path, manifest: Manifest) -> Manifest:
        incarnation = self._incarnation
        store = incarnation.settings.store

        async def lease_check() -> None:
            await lease.check(incarnation.store, incarnation.files, incarnation.epoch)

        for left in reversed(range(store.retries + 1)):
            try:
                return await transfer.publish(
                    directory,
                    incarnation.store,
                    incarnation.files,
                    manifest,
                    incarnation.node.key,
                    store.compression,
                    store.level,
                    lease_check,
                )
            except lease.LeaseLost:
                raise
            except (SlurmckptError, OSError) as error:
                if not left:
                    raise
                log.warning("checkpoint #%d cannot be committed: %s; tries left: %d", manifest.seq, error, left)
        raise AssertionError("store.retries is at least 0")

    async def _say_once(self, text: str) -> None:
        """In the job's output and its record, when it is new."""
        if kind(text) in self._said:
            return
        self._said.add(kind(text))
        with contextlib.suppress(SlurmckptError, OSError):
            await self._incarnation.journal.event(text)
        await self._notices.to_running(self._steps.values(), text)
