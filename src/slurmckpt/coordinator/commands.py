"""Runs the hook commands of site and job in a pod: as the job's user, for a limited time, with nothing left of them.

They run beside the ranks: in the pod's namespaces and the step's cgroup, with environment and directory of the step's
first task, and with standard input from nowhere. What they print goes line by line into the job's output.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeVar

from slurmckpt.capture import procfs
from slurmckpt.capture.processes import pid_on_node
from slurmckpt.config import Hooks
from slurmckpt.coordinator.choice import Ended, Skipped, Unsettled
from slurmckpt.coordinator.journal import Journal
from slurmckpt.coordinator.notices import PREFIX
from slurmckpt.coordinator.participant import executes
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.spec import Options
from slurmckpt.coordinator.step import Step
from slurmckpt.errors import SlurmckptError, one_line
from slurmckpt.units import format_seconds

log = logging.getLogger(__name__)

_T = TypeVar("_T")
Event = Literal["pre-checkpoint", "post-checkpoint", "post-restore"]

# The kernel takes at most 6 MiB of arguments and environment.
_MAX_ENVIRONMENT = 6 << 20
_MAX_OUTPUT = 64 << 10
_MAX_LINES = 100
_END_SECONDS = 10.0

# How long a checkpoint waits for a task that is just being started, as a capture does.
_START_SECONDS = 10.0
_LOOK_SECONDS = 0.05


class Commands:
    """The hook commands of one job: those of the site, then its own."""

    def __init__(self, enter: Path, settings: Hooks, options: Options, journal: Journal) -> None:
        self._enter = enter
        self._seconds = settings.timeout
        self._journal = journal
        self._told: set[str] = set()
        self._under_way: set[asyncio.Task[None]] = set()
        self._commands: dict[Event, list[str]] = {
            "pre-checkpoint": _given(settings.pre_checkpoint, options.pre),
            "post-checkpoint": _given(settings.post_checkpoint, options.post),
            "post-restore": _given(settings.post_restore, options.restored),
        }

    async def around(self, steps: Collection[Step], seq: int, capture: Callable[[], Awaitable[_T]]) -> _T:
        """What `capture` gives, with the commands before and after it. Raises Skipped when one before it fails.

        steps: those of now, whenever it is looked at.
        """
        if self._commands["pre-checkpoint"]:
            await _begun(steps)
        running, variables = list(steps), {"SLURM_CKPT_SEQ": str(seq)}
        result = "skipped"
        try:
            failed = await self._run("pre-checkpoint", running, variables)
            if failed:
                raise Skipped(failed)
            captured = await capture()
            result = "captured"
        except Exception:
            await self._afterwards("post-checkpoint", running, {**variables, "SLURM_CKPT_RESULT": result})
            raise
        await self._afterwards("post-checkpoint", running, {**variables, "SLURM_CKPT_RESULT": result})
        return captured

    def restored(self, steps: Iterable[Step], seq: int) -> None:
        """To be called when the ranks run again after a restore from `seq`. Nobody waits for the commands."""
        task = asyncio.create_task(self._afterwards("post-restore", list(steps), {"SLURM_CKPT_SEQ": str(seq)}))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _afterwards(self, event: Event, steps: list[Step], variables: Mapping[str, str]) -> None:
        """Nothing depends on these: a failure is told, in the output once."""
        failed = await self._run(event, steps, variables)
        if not failed or failed in self._told:
            return
        self._told.add(failed)
        log.warning("%s", failed)
        with contextlib.suppress(SlurmckptError, OSError):
            await self._journal.event(failed)
        pod = _home(steps)
        if pod is not None:
            await pod.say(PREFIX + failed)

    async def _run(self, event: Event, steps: list[Step], variables: Mapping[str, str]) -> str:
        """Run the commands of this event, one after the other; what went wrong, or an empty text."""
        for command in self._commands[event]:
            pod = _home(steps)
            if pod is None:
                return ""
            try:
                failed = await self._run_one(event, command, pod, {"SLURM_CKPT_HOOK": event, **variables})
            except (SlurmckptError, OSError) as error:
                failed = f"could not be run: {error}"
            if failed:
                return f"the {event} command {one_line(command, 80)!r} {failed}"
        return ""

    async def _run_one(self, event: Event, command: str, pod: Pod, variables: Mapping[str, str]) -> str:
        directory, environment = await asyncio.to_thread(_surroundings, pod, variables)
        try:
            words = [str(self._enter), "--pid", str(pod.init_pid)]
            for path in pod.cgroups:
                words += ["--cgroup", str(path)]
            words += ["--uid", str(pod.uid), "--gid", str(pod.gid), "--groups", ",".join(map(str, pod.groups))]
            words += ["--chdir", directory, "--environment", str(environment), "--whole"]
            process = await asyncio.create_subprocess_exec(
                *words, "--", "/bin/sh", "-c", command,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                pass_fds=[environment], env={}, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(environment)
        assert process.stdout is not None
        listening = asyncio.create_task(_listen(process.stdout))
        try:
            failed = await self._wait(process)
            said = await listening
        finally:
            listening.cancel()
            if process.returncode is None:
                await _end(process)
        for line in said:
            await pod.say(f"{PREFIX}{event}: {line}")
        return failed

    async def _wait(self, process: asyncio.subprocess.Process) -> str:
        try:
            status = await asyncio.wait_for(process.wait(), self._seconds)
        except asyncio.TimeoutError:
            await _end(process)
            return f"did not end within {format_seconds(self._seconds)} (hooks.timeout) and was killed"
        if status < 0:
            return f"was killed by signal {-status} ({signal.strsignal(-status) or 'unknown'})"
        return f"ended with status {status}" if status else ""


def _given(*commands: str | None) -> list[str]:
    return [command for command in commands if command]


def _home(steps: Iterable[Step]) -> Pod | None:
    """Where the commands run: beside the batch script where it runs in a pod, else beside the first step."""
    running = [step for step in steps if step.pod is not None and step.running]
    chosen = next((step for step in running if step.name == "batch"), running[0] if running else None)
    return chosen.pod if chosen is not None else None


async def _begun(steps: Iterable[Step]) -> None:
    """Return when the task in whose place the commands run has begun its program.

    A capture waits for one that is just being started, so it would be captured without them. Raises Ended, Unsettled.
    """
    clock = asyncio.get_running_loop().time
    given_up = clock() + _START_SECONDS
    while (pod := _home(steps)) is None or not await asyncio.to_thread(_runs_its_program, pod):
        if clock() > given_up:
            raise Ended("no task of this job runs in a pod") if pod is None else Unsettled("a task is just starting")
        await asyncio.sleep(_LOOK_SECONDS)


def _runs_its_program(pod: Pod) -> bool:
    """Whether its first task does: up to its execve(2) it has the leader's environment."""
    first = next((task for _, task in sorted(pod.tasks.items()) if task.status is None), None)
    if first is None or not first.pid:
        return False
    task, leader = (pid_on_node(pod.init_pid, pid) for pid in (first.pid, pod.leader_pid))
    return task is None or leader is None or not executes(task, Path(f"{procfs.PROC}/{leader}/exe"))


def _surroundings(pod: Pod, variables: Mapping[str, str]) -> tuple[str, int]:
    """Directory and environment of the pod's first task that runs; the latter in a memfd. Raises OSError."""
    numbers = [task.pid for _, task in sorted(pod.tasks.items()) if task.pid and task.status is None]
    pid = pid_on_node(pod.init_pid, numbers[0]) if numbers else None
    found = procfs.read(f"{procfs.PROC}/{pid}/environ", _MAX_ENVIRONMENT) if pid is not None else None
    directory = procfs.link(f"{procfs.PROC}/{pid}/cwd") if pid is not None else None
    names = tuple(os.fsencode(f"{name}=") for name in variables)
    strings = [one for one in (found or b"").split(b"\0") if one and not one.startswith(names)]
    strings += [os.fsencode(f"{name}={value}") for name, value in variables.items()]
    memory = os.memfd_create("environment", os.MFD_CLOEXEC)
    with open(os.dup(memory), "wb") as file:
        file.write(b"".join(one + b"\0" for one in strings))
    return directory or "/", memory


async def _listen(stream: asyncio.StreamReader) -> list[str]:
    """The lines that come, as many as are kept; the rest is read and counted, so that the writer never waits."""
    kept, dropped = b"", 0
    while piece := await stream.read(1 << 16):
        room = _MAX_OUTPUT - len(kept)
        kept += piece[:room]
        dropped += len(piece[room:])
    lines = kept.split(b"\n")[:_MAX_LINES]
    dropped += max(len(kept) - sum(len(line) + 1 for line in lines), 0)
    shown = [one_line(line.decode("utf-8", "replace")) for line in lines if line]
    return [*shown, f"({dropped} bytes more)"] if dropped else shown


async def _end(process: asyncio.subprocess.Process) -> None:
    """End it with all that it has started; only enter itself where the kernel keeps one of them."""
    for end in (process.terminate, process.kill):
        with contextlib.suppress(ProcessLookupError):
            end()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), _END_SECONDS)
            return
    log.error("enter (process %d) does not end", process.pid)
