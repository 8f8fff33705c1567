"""A batch script that goes back in place while the sruns that it waits for run on.

Each srun outlives its stand-in: both ends of its two pipes that the stand-in holds are held for it, and the restored
stand-in gets them. So srun, its slurmstepd and the shims of its step go on as if nothing had happened. That is exact
only where nothing but the step itself has used what srun has open; every other case is refused.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from slurmckpt.capture import procfs
from slurmckpt.capture.processes import Process, pod_processes
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.script import stand_ins
from slurmckpt.coordinator.script.launch import Launch, Pipes
from slurmckpt.coordinator.script.script import Script
from slurmckpt.coordinator.script.stand_ins import StandIn
from slurmckpt.coordinator.step import Step
from slurmckpt.errors import SlurmckptError
from slurmckpt.store.manifest import StepImage

_STATUS = struct.Struct("=i")


class Bound(SlurmckptError):
    """The script cannot go back beside its sruns. The message says why."""


class Sruns:
    """The sruns that a batch script waits for. To be made while it runs, and to be closed."""

    def __init__(self, script: Script | None, step: Step, pod: Pod) -> None:
        """step, pod: of the batch script. Raises SlurmckptError or OSError when it cannot go back beside them."""
        self._script = script
        self._kept: dict[int, tuple[Launch, int, int]] = {}
        self._descriptors = contextlib.ExitStack()
        if script is None:
            return
        processes = pod_processes(pod.init_pid)
        given = {holder.identity for holder in step.streams.files}
        try:
            for waiting in stand_ins.find(script, processes):
                if waiting.status is None:
                    _check(waiting, processes, given)
                    self._keep(waiting)
        except BaseException:
            self.close()
            raise

    def match(self, image: StepImage) -> None:
        """Raises Bound when the script of this image waits for other sruns than now."""
        waited_for = {launch.number: launch.step for launch in image.launches if launch.status is None}
        for number in sorted(waited_for.keys() | self._kept.keys()):
            if number not in self._kept:
                raise Bound(f"srun {number} of the script has ended since")
            if number not in waited_for:
                raise Bound(f"srun {number} of the script has started since")
            if self._kept[number][0].step != waited_for[number]:
                raise Bound(f"srun {number} of the script has started its step since")

    def inherit(self, image: StepImage) -> dict[str, int]:
        """CRIU's keys of the stand-ins' pipes in the image, and what takes their places. Raises OSError."""
        found = {}
        for launch in image.launches:
            if launch.status is None:
                _, found[launch.signal_pipe], found[launch.status_pipe] = self._kept[launch.number]
            else:
                # A stand-in that has not taken note of the end of its srun yet.
                pipes = Pipes.new()
                self._descriptors.callback(pipes.close)
                os.write(pipes.status_write, _STATUS.pack(launch.status))
                found[launch.signal_pipe], found[launch.status_pipe] = pipes.signals_write, pipes.status_read
        return found

    def meet(self, image: StepImage, init_pid: int) -> None:
        """The stand-ins have come back in this pod, and do not run yet. Raises SlurmckptError or OSError."""
        processes = {process.ns_pid: process.pid for process in pod_processes(init_pid)}
        for saved in image.launches:
            if saved.status is None:
                if saved.pid not in processes:
                    raise Bound(f"the stand-in of srun {saved.number} did not come back")
                launch = self._kept[saved.number][0]
                launch.stand_in = processes[saved.pid]
                _put_offsets_back(launch)

    def forget_later(self, started: int) -> None:
        """The script is back where it had started so many sruns: what it has started since is forgotten."""
        if self._script is not None:
            self._script.numbered = started
            for number in [number for number in self._script.launches if number >= started]:
                del self._script.launches[number]

    def close(self) -> None:
        """Give up what is held for stand-ins that have it themselves by now, or will not come."""
        self._descriptors.close()

    def _keep(self, waiting: StandIn) -> None:
        launch, pid = waiting.launch, waiting.process.pid
        pidfd = os.pidfd_open(pid)
        try:
            ends = []
            for key in (launch.signal_key, launch.status_key):
                ends.append(procfs.borrow_descriptor(pidfd, _number_of(pid, key)))
                self._descriptors.callback(os.close, ends[-1])
        finally:
            os.close(pidfd)
        self._kept[launch.number] = (launch, ends[0], ends[1])


def _check(waiting: StandIn, processes: Iterable[Process], given: set[tuple[int, int]]) -> None:
    """Raises Bound when something else than its step uses what this srun has open. given: files of the batch task."""
    launch, pid = waiting.launch, waiting.process.pid
    if launch.is_fed or launch.pipes_inside:
        raise Bound(f"the script handles input or output of step {launch.step}")
    for number in launch.payload.numbers("fds"):
        status = os.stat(f"{procfs.PROC}/{pid}/fd/{number}")
        if stat.S_ISFIFO(status.st_mode):
            raise Bound(f"srun {launch.number} of the script holds a pipe of it (descriptor {number})")
        own = stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in given
        if own and _others_write(status, pid, processes):
            raise Bound(f"the script and step {launch.step} write to the same file (descriptor {number} of srun)")


def _number_of(pid: int, target: str) -> int:
    """Under which number a process has this pipe. Raises Bound."""
    directory = f"{procfs.PROC}/{pid}/fd"
    for name in procfs.names(directory):
        if procfs.link(f"{directory}/{name}") == target:
            return int(name)
    raise Bound("an srun of the script is just ending")


def _others_write(status: os.stat_result, pid: int, processes: Iterable[Process]) -> bool:
    """Whether another process of the script has this file open for writing at a place of its own.

    After a restore it would share that place with the srun no more. Where every write goes to the end there is none.
    """
    for process in processes:
        if process.pid == pid:
            continue
        directory = f"{procfs.PROC}/{process.pid}/fd"
        for name in procfs.names(directory):
            try:
                other = os.stat(f"{directory}/{name}")
            except OSError:
                continue
            if (other.st_dev, other.st_ino) == (status.st_dev, status.st_ino):
                flags = int(procfs.fields(procfs.read(f"{procfs.PROC}/{process.pid}/fdinfo/{name}") or b"")["flags"], 8)
                if flags & os.O_ACCMODE != os.O_RDONLY and not flags & os.O_APPEND:
                    return True
    return False


def _put_offsets_back(launch: Launch) -> None:
    """srun writes on where its restored stand-in would: at the boundary."""
    pidfd = os.pidfd_open(launch.pid)
    try:
        for number in launch.payload.numbers("fds"):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(f"{procfs.PROC}/{launch.stand_in}/fd/{number}")
                if not stat.S_ISREG(status.st_mode):
                    continue
                fields = procfs.fields(Path(f"{procfs.PROC}/{launch.stand_in}/fdinfo/{number}").read_bytes())
                descriptor = procfs.borrow_descriptor(pidfd, number)
                try:
                    own = os.fstat(descriptor)
                    if (own.st_dev, own.st_ino) == (status.st_dev, status.st_ino):
                        os.lseek(descriptor, int(fields["pos"]), os.SEEK_SET)
                finally:
                    os.close(descriptor)
    finally:
        os.close(pidfd)
