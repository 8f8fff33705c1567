"""The stand-in for srun in the pod of the batch script: prepared before that is built, taken away when it is gone."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from slurmckpt.coordinator import payload as payloads
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.script import saved
from slurmckpt.coordinator.script.desk import Desk
from slurmckpt.coordinator.script.script import prepare
from slurmckpt.coordinator.task import Task
from slurmckpt.errors import SlurmckptError
from slurmckpt.store.manifest import StepImage

log = logging.getLogger(__name__)


class Reception:
    """The desk of the batch pod that there is now, where its srun has a stand-in."""

    def __init__(self, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._desk: Desk | None = None

    async def open(self, pod: Pod, task: Task, image: tuple[StepImage, Path] | None) -> None:
        """Let the pod of the batch script have a stand-in for srun, where that can be.

        image: what it is restored from, and where that lies.
        """
        await self.close()
        incarnation, settings = self._incarnation, self._incarnation.settings
        try:
            then = await asyncio.to_thread(saved.load_environment, *image) if image is not None else None
            script = await asyncio.to_thread(
                prepare,
                payloads.from_memfd(task.payload),
                task.shim_pid,
                (pod.uid, pod.gid, pod.groups),
                settings.paths.libexec,
                pod.settings.run,
                then,
                incarnation.marks,
            )
            if script is None:
                log.info("job %d: no srun in the PATH of its script", incarnation.spec.job.job_id)
                return
            if image is not None:
                script.former = frozenset(map(os.fsencode, {image[0].hostname, *incarnation.journal.former_nodes}))
            self._desk = Desk(script, pod)
        except (SlurmckptError, OSError) as error:
            # The script runs all the same; it is not captured while it waits in srun.
            log.warning("job %d: srun gets no stand-in: %s", incarnation.spec.job.job_id, error)
            return
        pod.binds = script.binds
        incarnation.script = script

    async def close(self) -> None:
        """The pod is gone: nobody comes to the desk any more, and its sruns end."""
        script, self._incarnation.script = self._incarnation.script, None
        desk, self._desk = self._desk, None
        # First: an srun that is just starting ends with its conversation.
        if desk is not None:
            await desk.close()
        if script is not None:
            await script.end()
