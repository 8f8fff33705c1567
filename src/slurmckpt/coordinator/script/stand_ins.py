"""The stand-ins of a pod that stands still: which of its processes waits for which srun."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slurmckpt.capture import procfs
from slurmckpt.capture.processes import Process
from slurmckpt.coordinator.script.launch import Launch
from slurmckpt.coordinator.script.script import Script
from slurmckpt.errors import SlurmckptError


class Underway(SlurmckptError):
    """An srun of the script is just starting or ending. Soon it will not be."""


@dataclass(frozen=True)
class StandIn:
    """A process of the batch pod that waits for the srun of `launch`.

    status, step: of that srun at the boundary; the launch itself knows more a moment later.
    """

    process: Process
    launch: Launch
    status: int | None
    step: str


def find(script: Script, processes: Iterable[Process]) -> list[StandIn]:
    """Every stand-in among the processes of the pod. Raises Underway, OSError."""
    if script.arriving:
        raise Underway("an srun of the script is just starting")
    program = os.stat(script.stand_in)
    # A thread runs this: the launches may change meanwhile.
    by_keys = {(launch.signal_key, launch.status_key): launch for launch in list(script.launches.values())}
    found = []
    for process in processes:
        try:
            running = os.stat(f"{procfs.PROC}/{process.pid}/exe")
        except OSError:
            continue  # a zombie, or gone
        if (running.st_dev, running.st_ino) != (program.st_dev, program.st_ino):
            continue
        pipes = _pipes(process.pid)
        launch = next((one for keys, one in by_keys.items() if pipes.issuperset(keys)), None)
        if launch is None:
            raise Underway("an srun of the script is just starting")
        found.append(StandIn(process, launch, launch.status, launch.step))
    waiting = {stand_in.launch.number for stand_in in found}
    if any(launch.number not in waiting for launch in script.running()):
        raise Underway("an srun of the script is just ending")
    return found


def check(script: Script, before: tuple[int, int] | None, processes: Iterable[Process]) -> None:
    """Raises Underway when an srun came or went while these processes of the pod, which need not stand still, were
    looked at. before: script.coming as it was then."""
    if before != (script.numbered, 0):
        raise Underway("an srun of the script is just starting")
    find(script, processes)


@contextlib.contextmanager
def pipes(stand_in: StandIn) -> Iterator[dict[int, int]]:
    """Those standard streams of its srun that are pipes: number to a descriptor of ours, given up at the end.

    Raises OSError.
    """
    borrowed: dict[int, int] = {}
    pidfd = os.pidfd_open(stand_in.process.pid)
    try:
        for number in stand_in.launch.pipes_inside:
            borrowed[number] = procfs.borrow_descriptor(pidfd, number)
        yield borrowed
    finally:
        os.close(pidfd)
        for descriptor in borrowed.values():
            os.close(descriptor)


def _pipes(pid: int) -> set[str]:
    directory = f"{procfs.PROC}/{pid}/fd"
    targets = (procfs.link(f"{directory}/{name}") for name in procfs.names(directory))
    return {target for target in targets if target is not None and target.startswith("pipe:")}
