"""The boundary gate of each step: its memory in the job's /dev/shm, and the environment by which tasks find it.

The library lies there, too: so it comes along with a checkpoint, and a restore finds what the ranks have mapped also
where another release of slurmckpt is installed by now.

Whatever goes wrong here, the tasks run: without a gate (capture/gate, docs/gpu.md).
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from slurmckpt.capture.gate.judge import Alive
from slurmckpt.capture.gate.region import GateError, Region
from slurmckpt.capture.gate.report import Report, report
from slurmckpt.config import Settings
from slurmckpt.coordinator import payload as payloads
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.task import Task
from slurmckpt.coordinator.wire import WireError

log = logging.getLogger(__name__)

LIBRARY = "libnccl-profiler-slurmckpt.so"
_DRIVER = Path("/proc/driver/nvidia/version")
_PREFIX = "slurmckpt-gate."
_LIBRARY_PREFIX = "libnccl-profiler-slurmckpt-"
_PLUGIN = b"NCCL_PROFILER_PLUGIN"
_REGION = b"SLURM_CKPT_GATE"
_NEXT = b"SLURM_CKPT_GATE_NEXT"
# Told of each step by `slurmckpt status`.
_MAX_RANKS = 256


def path_of(shm: Path, step: str) -> Path:
    """Where the gate of a step lies. shm: the job's /dev/shm as the coordinator sees it."""
    return shm / f"{_PREFIX}{step}"


def equip(tasks: Sequence[Task], pod: Pod, settings: Settings, driver: Path = _DRIVER) -> None:
    """Make the gate of a step that is about to start afresh, and let its tasks find it."""
    library = settings.paths.libexec / LIBRARY
    wanted = settings.gate.enabled == "always" or (settings.gate.enabled == "auto" and driver.exists())
    if not wanted or not library.exists():
        return
    try:
        name = _bring(library, pod.settings.shm)
        Region.create(path_of(pod.settings.shm, pod.step), pod.uid, pod.gid).close()
        for task in tasks:
            handed = payloads.from_memfd(task.payload)
            variables = environment(handed.environment, name, pod.step)
            changed = payloads.to_memfd(handed.with_words(handed.argv, variables))
            os.close(task.payload)
            task.payload = changed
    except (GateError, WireError, OSError) as error:
        log.warning("step %s has no gate: %s", pod.step, error)


def _bring(library: Path, shm: Path) -> str:
    """Copy the library into the job's /dev/shm, where it is root's and nobody else can change it; its name there."""
    content = library.read_bytes()
    name = f"{_LIBRARY_PREFIX}{hashlib.sha256(content).hexdigest()[:12]}.so"
    target = shm / name
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o755)
    except FileExistsError:
        status = target.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size != len(content):
            raise GateError(f"{target} is not what slurmckpt has put there") from None
    else:
        with open(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(descriptor, 0o755)
    return name


def environment(given: Iterable[bytes], library: str, step: str) -> list[bytes]:
    """A task's environment with the gate. A profiler plugin that is set already comes after it.

    library: its name in /dev/shm.
    """
    found = dict(entry.partition(b"=")[::2] for entry in given if b"=" in entry)
    before = found.get(_PLUGIN)
    ours = {name: b"/dev/shm/" + value.encode() for name, value in ((_PLUGIN, library), (_REGION, _PREFIX + step))}
    if before is not None and not before.startswith(b"/dev/shm/" + _LIBRARY_PREFIX.encode()):
        ours[_NEXT] = before
    kept = [entry for entry in given if entry.partition(b"=")[0] not in ours]
    return kept + [name + b"=" + value for name, value in ours.items()]


def reopen(shm: Path) -> None:
    """Open the gates of a /dev/shm that was just put back: they were saved while they were closed."""
    for path in shm.glob(f"{_PREFIX}*"):
        try:
            with Region.open(path) as region:
                region.open_gate()
        except GateError as error:
            # It is the user's file. Ranks that are held in it go on by themselves.
            log.warning("%s", error)


def alive_in(pod: Pod) -> Alive:
    """Whether a process of a pod, by its pid inside, is alive; one that is dead and not waited for is not."""
    proc = Path(f"/proc/{pod.init_pid}/root/proc")

    def alive(pid: int) -> bool:
        try:
            text = (proc / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return False
        return text.rpartition(")")[2].split()[:1] not in (["Z"], ["X"])

    return alive


def look(pod: Pod) -> Report | None:
    """What the gate of a pod tells of its ranks; None when it has none, or none that is in use."""
    try:
        with Region.open(path_of(pod.settings.shm, pod.step)) as region:
            found = report(region.snapshot(), alive_in(pod))
    except GateError:
        return None
    return found if found.ranks else None


def look_at_all(steps: Iterable[Step]) -> dict[str, Report]:
    """The reports of all steps that run in a pod and have any, by the step's name."""
    running = [step for step in steps if step.pod is not None and step.running]
    found = {step.name: look(step.pod) for step in running if step.pod is not None}
    return {name: told for name, told in found.items() if told is not None}


def document(steps: Iterable[Step]) -> dict[str, Any]:
    """For `slurmckpt status`: each rank in each communicator, and who is waited for at this moment."""
    told = look_at_all(steps)
    return {
        "ranks": [
            {"step": name} | dataclasses.asdict(rank) for name, one in told.items() for rank in one.ranks[:_MAX_RANKS]
        ],
        "waits_for": [one.waits_for for one in told.values() if one.waits_for],
    }
