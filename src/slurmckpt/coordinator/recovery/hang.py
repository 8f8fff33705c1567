"""A job that does nothing any more: no CPU time, no output. All ranks go back, in place, as after a crash.

Ranks that wait for a GPU use CPU time, for ever when a peer does not come. Where a gate counts their collectives
(gating), and somebody is waited for, only the CPU time of those counts who are waited for and wait for nobody.

Off unless it is asked for: only who knows the program knows how long it may be silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from slurmckpt.capture.processes import pod_processes
from slurmckpt.coordinator import gating
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.recovery.crash import Attempts, Left
from slurmckpt.coordinator.recovery.in_place import InPlace, Lost
from slurmckpt.coordinator.recovery.scene import Scene
from slurmckpt.coordinator.streams import files_written_by
from slurmckpt.errors import SlurmckptError
from slurmckpt.units import format_seconds

log = logging.getLogger(__name__)

_LOOKS = 10  # within hang_after
# Threads that only wake up to look at the time use less than this fraction of a CPU, ranks that work use more.
_IDLE = 0.001
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Progress:
    """What a job has done so far. cpu: seconds of all its processes. output: its files, by device and inode.

    collectives: counts what its ranks have enqueued, where a gate does. waits_for: the ranks that others wait for.
    absent_cpu: the part of cpu that is of those among them who wait for nobody.
    """

    cpu: float
    output: frozenset[tuple[int, int, int, int]]
    pods: frozenset[int]
    collectives: int = 0
    waits_for: str = ""
    absent_cpu: float = 0.0

    def goes_beyond(self, before: Progress, seconds: float) -> bool:
        """Whether the job has done anything in the `seconds` since `before`."""
        used = self.cpu - before.cpu
        if self.waits_for and self.waits_for == before.waits_for:
            used = self.absent_cpu - before.absent_cpu
        worked = abs(used) > _IDLE * seconds + 1 / _TICKS or self.collectives != before.collectives
        return worked or self.output != before.output or self.pods != before.pods


class Hangs:
    """Watches one job."""

    def __init__(self, scene: Scene, in_place: InPlace, attempts: Attempts) -> None:
        self._scene = scene
        self._in_place = in_place
        self._attempts = attempts
        self._said = ""
        self._after = scene.incarnation.settings.recover.hang_after

    async def run(self) -> None:
        """Watch, until cancelled."""
        if "hang" not in self._scene.events:
            return
        since, before = time.monotonic(), await asyncio.to_thread(self._measure)
        while True:
            await asyncio.sleep(self._after / _LOOKS)
            now, current = time.monotonic(), await asyncio.to_thread(self._measure)
            busy = not current.pods or self._scene.checkpointer.one_at_a_time.locked()
            if busy or current.goes_beyond(before, now - since):
                since, before = now, current
            elif now - since >= self._after:
                await self._recover(current.waits_for)
                since, before = time.monotonic(), await asyncio.to_thread(self._measure)

    async def _recover(self, waits_for: str) -> None:
        scene = self._scene
        newest = scene.checkpointer.newest
        done = f"enqueued no collective ({waits_for})" if waits_for else "used no CPU time"
        what = f"the job has {done} and printed nothing for {format_seconds(self._after)}"
        if reason := await scene.unhealthy():
            # Suspended, most likely.
            log.info("job %d: %s: not recovered: %s", scene.job_id, what, reason)
            return
        try:
            self._attempts.check(what, newest.seq if newest else 0)
        except Left as left:
            await scene.tell(f"{left}; its tasks are killed")
            for pod in self._pods():
                pod.destroy()
            return
        try:
            restored = await self._in_place.recover(None)
        except Lost:
            pass  # told by who lost them
        except SlurmckptError as error:
            if str(error) != self._said:
                self._said = str(error)
                await scene.tell(f"{what}: not recovered: {error}")
        else:
            self._attempts.count(what, restored.seq)
            await scene.note(f"{what}: all ranks were restored in place from #{restored.seq}")

    def _pods(self) -> list[Pod]:
        return [step.pod for step in self._scene.steps.values() if step.pod is not None and step.running]

    def _measure(self) -> Progress:
        cpu, absent_cpu, pods = 0.0, 0.0, self._pods()
        told = gating.look_at_all(self._scene.steps.values())
        descriptors = [holder.descriptor for step in list(self._scene.steps.values()) for holder in step.streams.files]
        output = set()
        script = self._scene.incarnation.script
        borrowed = [holder for one in (script.running() if script else []) for holder in files_written_by(one.pid, "")]
        for pod in pods:
            with contextlib.suppress(SlurmckptError):
                absent = told[pod.step].absent if pod.step in told else frozenset[int]()
                used = {process.ns_pid: _cpu_seconds(process.pid) for process in pod_processes(pod.init_pid)}
                cpu += sum(used.values())
                absent_cpu += sum(used.get(pid, 0.0) for pid in absent)
        for descriptor in [*descriptors, *(holder.descriptor for holder in borrowed)]:
            with contextlib.suppress(OSError):
                status = os.fstat(descriptor)
                output.add((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
        for holder in borrowed:
            holder.close()
        return Progress(
            cpu,
            frozenset(output),
            frozenset(pod.init_pid for pod in pods),
            sum(one.counts for one in told.values()),
            "; ".join(one.waits_for for one in told.values() if one.waits_for),
            absent_cpu,
        )


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process and of its children that were waited for (fields 14 to 17 of /proc/PID/stat, proc(5))."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(word) for word in words[11:15]) / _TICKS
