"""Pods whose connections lead into each other meet while their sockets are silent (capture/crossings.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path

from slurmckpt.capture import crossings
from slurmckpt.coordinator.cut import Rendezvous
from slurmckpt.coordinator.plan import Plan
from slurmckpt.coordinator.pod import Pod
from slurmckpt.store.manifest import StepImage


class Reunion:
    """Those of one checkpoint. missing: the steps that are still to come."""

    def __init__(self, images: Mapping[str, Path]) -> None:
        """images: where CRIU's images of each of them are, by step."""
        self._images = images
        self.missing = set(self._images)
        self._pods: list[Pod] = []
        self._meeting = Rendezvous(len(self._images), self._all_exist)

    @classmethod
    async def of(cls, plan: Plan) -> Reunion:
        """That of the checkpoint that lies in `plan`. Raises OSError when it cannot be read."""
        places = {image.step: plan.directory / image.directory / "images" for image in plan.manifest.steps}
        found = await asyncio.to_thread(lambda: {step for step, images in places.items() if crossings.pairs(images)})
        return cls({step: places[step] for step in found})

    async def meet(self, pod: Pod) -> None:
        """All sockets of one pod exist and are in TCP_REPAIR; returns when so it is with all, and all can hear.

        Raises CutAborted when another one will not come; in the last one, whatever keeps the ends from hearing.
        """
        self.missing.discard(pod.step)
        self._pods.append(pod)
        await self._meeting.arrive()

    def abort(self) -> None:
        """One of them will not come."""
        self._meeting.abort()

    async def _all_exist(self) -> None:
        # Each before any may send: what came to a deaf one would have to be sent again.
        for pod in self._pods:
            await asyncio.to_thread(crossings.listen, pod.init_pid, self._images[pod.step])


def leading_outside(image: StepImage, crossing: Collection[tuple[str, str]]) -> list[tuple[str, str]]:
    """The connections, local and remote end, at whose other end nobody is any more. crossing: those between pods."""
    return [pair for one in image.outside if (pair := (one.local, one.remote)) not in crossing]
