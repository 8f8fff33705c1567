"""One pod as a participant of a cut: what a look at it finds, and what the manifest says about it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.used import UsedFile
from slurmckpt.capture.preflight import PodScan, scan
from slurmckpt.capture.processes import Process, pod_processes
from slurmckpt.coordinator import held
from slurmckpt.coordinator.choice import Choice, Doubtful, Ended, Unsettled
from slurmckpt.coordinator.files.saving import PodFiles
from slurmckpt.coordinator.network import reachable
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.proc import parent_of
from slurmckpt.coordinator.script.saved import Saved
from slurmckpt.coordinator.script.script import STAND_IN
from slurmckpt.coordinator.step import Step
from slurmckpt.store.manifest import Connection, GpuImage, StepImage, TaskImage


@dataclass
class Participant:
    """One pod of the cut. tasks, scan, files: as they stood at the boundary.

    processes, gpu_users, message_sockets: at the look before, all, those with a GPU, and as in PodScan. gpu: what
    becomes of their GPU state.
    links: it may need names in /dev/shm for the dump. renamed: such names that were set aside (`linking`). names: what
    its processes are called in messages, by their pids inside the pod.
    """

    step: Step
    pod: Pod
    images: Path
    tasks: list[TaskImage] = field(default_factory=list)
    scan: PodScan | None = None
    files: PodFiles = field(default_factory=PodFiles)
    links: bool = False
    renamed: dict[str, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    gpu_users: list[Process] = field(default_factory=list)
    message_sockets: list[str] = field(default_factory=list)
    gpu: GpuImage | None = None


def look(step: Step, pod: Pod, choice: Choice, frozen: bool = False) -> PodScan:
    """What its processes are and hold. Raises Unsettled when they have ended, or are just being started."""
    known = {key for task in pod.tasks.values() for key in task.keys.values()} | {pod.status_key}
    if choice.script is not None and step.name == "batch":
        launches = list(choice.script.launches.values())  # a thread runs this: they may change meanwhile
        known |= {key for launch in launches for key in (launch.signal_key, launch.status_key)}
    processes = {process.ns_pid: process for process in pod_processes(pod.init_pid)}
    leader = processes.get(pod.leader_pid)
    if leader is None:
        raise Ended(f"the tasks of step {step.name} have ended")
    if reason := _starting(step, pod, processes):
        raise Unsettled(reason)
    # A shim that has ended may have left its number to any other process.
    shim = step.shim if step.carrier and parent_of(step.shim) == step.carrier else 0
    found = scan(pod.init_pid, leader.pid, known, shim_pid=shim, ranks=ranks(step, pod), frozen=frozen)
    stand_in = pod.settings.libexec / STAND_IN
    found.refusals.extend(
        f"{process} is connected to Slurm by itself, and its step would not come back: start it in the batch script,"
        " outside of other steps; or a checkpoint after its end will do"
        for process in found.processes
        if process.exe.rpartition("/")[2] == "srun" and executes(process.pid, stand_in) is False
    )
    return found


def _starting(step: Step, pod: Pod, processes: Mapping[int, Process]) -> str:
    """Why not all tasks run their programs yet; empty when they do. processes: by their pids inside the pod.

    Up to its execve(2) a task is a copy of the leader as root had it, with descriptors that lead out of the pod: no
    reason to refuse what comes then.
    """
    running = [task.pid for task in pod.tasks.values() if task.status is None]
    if not all(running):
        return f"not all tasks of step {step.name} have started yet"
    program = Path(f"/proc/{processes[pod.leader_pid].pid}/exe")
    for process in (processes[pid] for pid in running if pid in processes):
        if executes(process.pid, program):
            return f"{process} of step {step.name} has not begun its program yet"
    return ""


def executes(pid: int, program: Path) -> bool | None:
    """Whether a process executes this file, whatever that is called where the process is; None when it is gone."""
    try:
        return os.path.samefile(f"/proc/{pid}/exe", program)
    except OSError:
        return None


def ranks(step: Step, pod: Pod) -> dict[int, int]:
    """The ranks of the tasks that run, by their pids inside the pod. The batch script is none."""
    return {} if step.name == "batch" else {task.pid: task.gtask for task in pod.tasks.values() if task.pid}


def check_owners(found: PodScan, uid: int) -> None:
    """Raises Doubtful when a process holds what its user may not see, as the image goes into the user's store.

    Unsettled when it is just ending.

    /proc/PID/fd belongs to root where a process is not dumpable, as after executing a set-user-id program
    (proc_pid(5)).
    """
    for process in found.processes:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # A zombie holds nothing any more, and its directory is root's.
            if process.state != "Z" and os.stat(f"/proc/{process.pid}/fd").st_uid != uid:
                if procfs.link(f"{procfs.PROC}/{process.pid}/exe") is None:
                    # Without memory it is root's, too.
                    raise Unsettled(f"{process} is just ending")
                raise Doubtful(
                    f"{process} has rights or secrets that its user may not see: a set-user-id program, or one that"
                    " protects its memory (PR_SET_DUMPABLE, as ssh-agent does): a checkpoint will do when it has ended"
                )


def resident_bytes(pid: int) -> int:
    """Memory of a process that an image may hold: what is its own, plus what it shares (proc(5), statm)."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def task_images(pod: Pod) -> list[TaskImage]:
    """Its tasks as they are now."""
    return [
        TaskImage(
            index=index,
            gtask=task.gtask,
            pid=task.pid,
            exited=task.status is not None,
            status=task.status or 0,
            descriptors={str(number): key for number, key in task.keys.items()},
        )
        for index, task in sorted(pod.tasks.items())
    ]


def with_held(task: TaskImage, step: Step) -> TaskImage:
    """The task with the incomplete lines that its shim holds back: they belong to what it has written."""
    memory = step.streams.held.get(task.index)
    if memory is None:
        return task
    return replace(task, held={str(stream): text.hex() for stream, text in held.read(memory).items()})


def not_brought(participant: Participant) -> list[UsedFile]:
    """What its processes have mapped, or open for reading, but for what is saved with the checkpoint."""
    saved = {file.path for file in participant.files.open_files if file.policy == "read"}
    return [file for file in participant.scan.used_files if file.path not in saved] if participant.scan else []


def image(participant: Participant, criu_version: str, shm: bool, script: Saved) -> StepImage:
    """What the manifest says about it. shm: /dev/shm was saved."""
    step, pod, found = participant.step, participant.pod, participant.scan
    assert found is not None
    return StepImage(
        step=step.name,
        directory=step.name,
        leader_pid=pod.leader_pid,
        status_pipe=pod.status_key,
        ntasks=step.ntasks,
        argv_digest=step.argv_digest,
        uid=pod.uid,
        gid=pod.gid,
        tasks=participant.tasks,
        addresses=list(found.addresses),
        outside=[Connection(one.local, one.remote) for one in found.outside],
        inside=[Connection(local, remote) for local, remote in found.inside],
        node_addresses=reachable(Path(f"/proc/{pod.init_pid}")),
        open_files=participant.files.open_files,
        absent_files=participant.files.absent,
        criu_version=criu_version,
        shm=shm,
        hostname=pod.hostname or os.uname().nodename,
        command=step.command,
        launches=script.launches if step.name == "batch" else [],
        environment=script.environment if step.name == "batch" else None,
        script_path=step.script_file.path,
        script_digest=step.script_file.digest,
        script_paths=list(step.script_file.paths),
        gpu=participant.gpu,
    )
