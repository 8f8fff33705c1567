"""Which step, task and descriptor of an image is which of those that have started now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurmckpt.coordinator.step import Step
from slurmckpt.errors import Refused
from slurmckpt.store.manifest import OutputFile, StepImage


def mismatch(image: StepImage, step: Step) -> str:
    """Why this step is not the one in the image, or an empty text."""
    if image.ntasks != step.ntasks:
        return f"step {step.name} had {image.ntasks} tasks on its node and has {step.ntasks} now"
    if image.argv_digest != step.argv_digest:
        return (
            f"step {step.name} is {step.command!r} now, and was {image.command!r}"
            if step.command != image.command
            else f"step {step.name} ran in another directory, or with other arguments, than now: {step.command!r}"
        )
    if image.script_digest != step.script_file.digest:
        return "the batch script is not the one that ran at the checkpoint"
    return ""


def inheritance(image: StepImage, given: Mapping[int, Mapping[int, int]]) -> dict[str, int]:
    """CRIU's key of each outside descriptor in the image -> the descriptor that the task has in its place now.

    given: by task, its descriptors by number. Raises Refused when the tasks or their descriptors are others than those
    in the image.
    """
    added = sorted(given.keys() - {saved.index for saved in image.tasks})
    if added:
        raise Refused(f"task {added[0]} of step {image.step} had not started at the checkpoint")
    inherit: dict[str, int] = {}
    for saved in image.tasks:
        descriptors = given.get(saved.index)
        if descriptors is None:
            raise Refused(f"task {saved.index} of step {image.step} did not start")
        for number, key in saved.descriptors.items():
            if key.startswith("socket:"):
                continue
            descriptor = descriptors.get(int(number))
            if descriptor is None:
                raise Refused(f"task {saved.index} of step {image.step} has no descriptor {number} now")
            inherit.setdefault(key, descriptor)
    return inherit


def name_by_path(inherit: dict[str, int], entries: Sequence[OutputFile], image: StepImage) -> None:
    """Name the output files of this step as CRIU looks them up.

    For a regular file CRIU asks for an inherited descriptor by the path in the image, without its leading slash, and
    not by the external key (files-reg.c); without one it opens the path anew, with an offset of its own.
    """
    keys = {
        f"{image.step}/{saved.index}/{number}": key
        for saved in image.tasks
        for number, key in saved.descriptors.items()
    }
    for entry in entries:
        for holder in entry.holders:
            key = keys.get(holder)
            if key is not None and key in inherit:
                inherit[entry.path.lstrip("/")] = inherit.pop(key)


def names(image: StepImage) -> dict[int, str]:
    """What its tasks are called in messages, by their pids inside the pod."""
    if image.step == "batch":
        return {task.pid: f"process {task.pid} of the batch script" for task in image.tasks}
    return {task.pid: f"process {task.pid} of rank {task.gtask}" for task in image.tasks}
