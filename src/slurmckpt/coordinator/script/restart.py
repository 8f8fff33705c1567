"""Start the sruns of a restored script again, each with the descriptors of its restored stand-in."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Mapping
from pathlib import Path

from slurmckpt.capture import procfs
from slurmckpt.capture.processes import pod_processes
from slurmckpt.coordinator.script import inputs, saved
from slurmckpt.coordinator.script.launch import Launch, Pipes, modes_of
from slurmckpt.coordinator.script.script import Script
from slurmckpt.errors import Refused
from slurmckpt.store.manifest import LaunchImage, StepImage

_STATUS = struct.Struct("=i")


def new_pipes(image: StepImage) -> dict[int, Pipes]:
    """Pipes for every stand-in of the image, by the number of its launch. The caller closes them. Raises OSError."""
    made: dict[int, Pipes] = {}
    try:
        for launch in image.launches:
            made[launch.number] = Pipes.new()
    except OSError:
        for pipes in made.values():
            pipes.close()
        raise
    return made


def inherited(image: StepImage, pipes: Mapping[int, Pipes]) -> dict[str, int]:
    """CRIU's keys of the pipes in the image, and what takes their places."""
    found = {}
    for launch in image.launches:
        found[launch.signal_pipe] = pipes[launch.number].signals_write
        found[launch.status_pipe] = pipes[launch.number].status_read
    return found


def lent(image: StepImage, directory: Path) -> dict[int, list[int]]:
    """By pids of stand-ins inside the pod, the descriptors that their sruns get. Raises as restart()."""
    return {
        launch.pid: saved.load_payload(launch, directory).numbers("fds")
        for launch in image.launches
        if launch.status is None
    }


async def restart(
    script: Script, image: StepImage, directory: Path, init_pid: int, pipes: Mapping[int, Pipes]
) -> list[Launch]:
    """Start them; to be called while the restored pod stands still.

    directory: of the batch script in the verified checkpoint. init_pid: of the restored pod. Raises SlurmckptError or
    OSError.
    """
    processes = {process.ns_pid: process.pid for process in pod_processes(init_pid)}
    started = []
    for launch in image.launches:
        pid = processes.get(launch.pid)
        if pid is None:
            raise Refused(f"the stand-in of srun {launch.number} did not come back")
        if launch.status is not None:
            os.write(pipes[launch.number].status_write, _STATUS.pack(launch.status))
        else:
            started.append(await _restart(script, launch, directory, pid, pipes[launch.number]))
    return started


async def _restart(script: Script, image: LaunchImage, directory: Path, pid: int, pipes: Pipes) -> Launch:
    payload = saved.load_payload(image, directory)
    numbers = payload.numbers("fds")
    with contextlib.ExitStack() as stack:
        pidfd = os.pidfd_open(pid)
        stack.callback(os.close, pidfd)
        descriptors = []
        for number in numbers:
            descriptors.append(procfs.borrow_descriptor(pidfd, number))
            stack.callback(os.close, descriptors[-1])
        if image.input is not None and 0 in numbers:
            inputs.give_back(descriptors[numbers.index(0)], saved.load_input(image, directory))
        launch = Launch(
            number=image.number,
            payload=payload,
            modes=modes_of(numbers, descriptors),
            signal_key=pipes.signal_key,
            status_key=pipes.status_key,
            stand_in=pid,
            step=image.step,
        )
        script.launches[image.number] = launch
        await script.run(launch, pipes, descriptors)
    return launch
