"""SIGSTOP that Slurm sends to a task and to nothing else (`scancel --batch --signal=STOP`).

The shim stops, as everybody does, and cannot pass it on; nobody is told of it, so it is found by looking. SIGCONT
needs nobody: it wakes the shim, and the shim passes it on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from slurmckpt.capture.processes import pid_on_node
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.proc import parent_of
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.suspension import is_stopped
from slurmckpt.errors import SlurmckptError

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


class Stops:
    """Of the tasks of one job, each of which stands still when its shim does."""

    def __init__(self, steps: Mapping[str, Step]) -> None:
        self._steps = steps
        self._passed: set[tuple[str, int]] = set()

    async def watch(self) -> None:
        """Look every second, for ever."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Stop the tasks of shims that have been stopped since."""
        for name, step in self._steps.items():
            if not step.running or step.pod is None:
                continue
            for index, task in step.tasks.items():
                if not _stands(task.shim_pid):
                    self._passed.discard((name, index))
                elif (name, index) not in self._passed:
                    self._passed.add((name, index))
                    with contextlib.suppress(OSError, SlurmckptError):
                        _stop(step, step.pod, index, task.shim_pid)


def _stop(step: Step, pod: Pod, index: int, shim: int) -> None:
    pid = pid_on_node(pod.init_pid, pod.tasks[index].pid) if index in pod.tasks else None
    if pid is None:
        return
    pidfd = os.pidfd_open(pid)
    try:
        # scancel --full stops the whole group of the shim, in which the anchor is.
        group = os.getpgid(pid) if _stands(parent_of(pod.init_pid)) else 0
        log.info("step %s: task %d is stopped, as its shim was", step.name, index)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            signal.pidfd_send_signal(pidfd, number)
            if group > 1:
                os.killpg(group, number)
            if _stands(shim):
                return
            # Its SIGCONT came by before our SIGSTOP.
    finally:
        os.close(pidfd)


def _stands(pid: int) -> bool:
    return is_stopped(Path(f"/proc/{pid}"))
