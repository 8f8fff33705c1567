"""What the tasks of a step get for their GPUs when they start, and what is known of these GPUs."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence

from slurmckpt.config import Settings
from slurmckpt.coordinator import gpu_profile
from slurmckpt.coordinator import payload as payloads
from slurmckpt.coordinator.gpu_profile import Node, Profile
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.task import Task
from slurmckpt.store.manifest import GpuImage

log = logging.getLogger(__name__)


def start(step: Step, tasks: Sequence[Task], settings: Settings, fingerprint: Mapping[str, str]) -> str:
    """Choose the profile of a step that starts afresh, and put it into its tasks' environment.

    Gives a line for the job's output: which profile and why; empty when there is nothing to say. A job that may well
    use no GPU, as it names none, is not told of them.
    """
    environment = payloads.from_memfd(tasks[0].payload).environment
    step.gpu_indices = gpu_profile.indices(environment)
    step.profile = gpu_profile.choose(settings.gpu.profile, Node.of(fingerprint), environment, len(tasks))
    if step.profile.environment:
        for task in tasks:
            _add(task, step.profile)
    if step.profile.reason:
        log.info("step %s: %s", step.name, step.profile)
    if not gpu_profile.surely_has_gpus(environment):
        return ""
    if step.profile.conflict:
        return f"several GPU ranks will not be captured: {step.profile.conflict}"
    return str(step.profile) if step.profile.name != "none" else ""


def come_back(step: Step, tasks: Sequence[Task], image: GpuImage | None) -> None:
    """The same for a step that is restored: its ranks keep their environment, but may have other GPUs."""
    step.gpu_indices = gpu_profile.indices(payloads.from_memfd(tasks[0].payload).environment)
    step.profile = gpu_profile.recorded(image.profile, image.reason) if image is not None else Profile()


def _add(task: Task, profile: Profile) -> None:
    found = payloads.from_memfd(task.payload)
    changed = payloads.to_memfd(found.with_words(found.argv, gpu_profile.apply(profile, found.environment)))
    os.close(task.payload)
    task.payload = changed
