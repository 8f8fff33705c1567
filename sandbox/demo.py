"""The demo: a training loses its node to a power cut and goes on elsewhere as if nothing had happened.

The same two-rank training runs twice in a throwaway Slurm cluster: once undisturbed, once with checkpoints and a power
cut in the middle. Exit status 0 only if every logged loss and the final weights of both are identical, bit for bit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import zstandard
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

TREE = Path(__file__).resolve().parents[1]
CLUSTER = str(TREE / "sandbox/cluster")
STEPS = 300
CUT_AT = 130  # steps; the cut comes once a checkpoint has been committed, too
INTERVAL = "8s"
UID = 1000  # alice
POLL_SECONDS = 0.1
PATIENCE_SECONDS = 150.0

T = TypeVar("T")
console = Console(highlight=False)


class DemoFailed(Exception):
    """Something did not come out as it must. The message says what."""


def main() -> int:
    """Run the demo; the exit status."""
    began = time.monotonic()
    try:
        say("bring up a throwaway Slurm cluster: a controller, a login host and two nodes")
        subprocess.run([CLUSTER, "up", "--nodes", "2"], check=True)
        home = prepare()
        end_leftovers()

        say(f"run the training undisturbed: two ranks, PyTorch DDP, {STEPS} steps on a real text")
        console.print("    sbatch train.sbatch", style="bold")
        reference = submit(home, "undisturbed")
        with steps_bar() as bar:
            watch(bar, reference, lambda: state(reference) == "COMPLETED", "the end of the undisturbed training")

        say("run it again with checkpoints; nothing else changes")
        console.print(f"    sbatch --checkpoint-interval={INTERVAL} train.sbatch", style="bold")
        job = submit(home, "disturbed", f"--checkpoint-interval={INTERVAL}")
        line = disturb(job)
        verdict = compare(reference, job)
        say(f"done in {time.monotonic() - began:.0f} s; `sandbox/cluster down` removes the cluster")
        console.print(f"{line}; {verdict}", style="bold green", soft_wrap=True)
        return 0
    except (DemoFailed, subprocess.CalledProcessError) as error:
        # With what the job has printed, in whatever brackets.
        console.print(f"the demo failed: {error}", style="bold red", soft_wrap=True, markup=False, emoji=False)
        return 1
    except KeyboardInterrupt:
        end_leftovers()
        console.print("interrupted; the cluster is still up: run `make demo` again, or `sandbox/cluster down`")
        return 130


def end_leftovers() -> None:
    """End the trainings of an earlier demo that was interrupted, and bring a node back whose power it had cut."""
    for node in ("n1", "n2"):
        subprocess.run([CLUSTER, "start", node], check=False, capture_output=True)
    inside("scancel", "--user=alice", "--name=train")
    await_value("earlier trainings to end", lambda: not inside("squeue", "--noheader", "--user=alice", "--name=train"))


def disturb(job: Job) -> str:
    """Cut the power of the job's node in the middle of it and see it through; what happened, in one line."""
    with steps_bar() as bar:
        watch(
            bar, job, lambda: bool(job.checkpoints()) and job.steps() >= CUT_AT, "a checkpoint and half of the training"
        )
        node = job.node()
        newest = job.checkpoints()[-1]
        reached = job.steps()
    note = (
        f"#{newest['seq']}, {newest['bytes'] / 1e6:.0f} MB, the ranks stood still for {newest['freeze_seconds']:.2f} s"
    )
    say(f"step {reached}: cut the power of {node}, where it runs; its newest checkpoint is {note}")
    cut = time.monotonic()
    subprocess.run([CLUSTER, "fail", node], check=True)
    await_value("Slurm to notice the dead node", lambda: state(job) != "RUNNING" or len(job.attempts()) > 1)
    say(f"after {time.monotonic() - cut:.0f} s Slurm has given {node} up and requeued the job")
    attempt = await_value("the restore", lambda: restored(job))
    where, seq = attempt["node"], attempt["restored_from"]
    boundary = steps_in(job.saved_output(seq))
    restore = attempt["restored_seconds"]
    say(f"after {time.monotonic() - cut:.0f} s it goes on, on {where}, from #{seq}, restored in {restore:.2f} s")
    with steps_bar() as bar:
        watch(bar, job, lambda: state(job) == "COMPLETED", "the end of the training")
    subprocess.run([CLUSTER, "start", node], check=True, capture_output=True)
    seconds = attempt_age(job, seq, cut)
    repeated = f"{reached - boundary} steps ({seconds:.0f} s of work) were repeated"
    return f"restored on {where} from checkpoint #{seq} (step {boundary}); {repeated}"


class Job:
    """A submitted job and its output file."""

    def __init__(self, number: int, home: Path, output: Path) -> None:
        self.number = number
        self.home = home
        self.output = output
        self.cut_time = 0.0

    def text(self) -> str:
        """Its output so far."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def steps(self) -> int:
        """The step it has reached."""
        return steps_in(self.text())

    def node(self) -> str:
        """Where it runs."""
        return inside("squeue", "--noheader", f"--jobs={self.number}", "--format=%N").strip()

    def record(self) -> dict[str, Any]:
        """`slurmckpt status JOB --json`; empty while there is no record."""
        done = subprocess.run(
            [CLUSTER, "run", "--", "slurmckpt", "status", str(self.number), "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return found

    def checkpoints(self) -> list[dict[str, Any]]:
        """Its committed checkpoints."""
        found: list[dict[str, Any]] = self.record().get("checkpoints", [])
        return found

    def attempts(self) -> list[dict[str, Any]]:
        """Its incarnations."""
        found: list[dict[str, Any]] = self.record().get("attempts", [])
        return found

    def saved_output(self, seq: int) -> str:
        """The output as it is part of a checkpoint."""
        found = list(self.home.parent.parent.glob(f"store/*/alice/{self.number}/{seq}/output/*"))
        if not found:
            raise DemoFailed(f"checkpoint #{seq} holds no output")
        with found[0].open("rb") as stored:
            return zstandard.ZstdDecompressor().stream_reader(stored).read().decode()


def prepare() -> Path:
    """Put the training where alice can submit it; her home as this machine sees it."""
    path = subprocess.run([CLUSTER, "path"], check=True, capture_output=True, text=True).stdout.strip()
    home = Path(path) / "alice"
    for name in ("train.py", "train.sbatch"):
        shutil.copy(TREE / "examples" / name, home)
        os.chown(home / name, UID, UID)
    return home


def submit(home: Path, name: str, *options: str) -> Job:
    """Submit the training."""
    command = ["sbatch", "--parsable", f"--output={name}-%j.out", *options, "train.sbatch", f"--steps={STEPS}"]
    number = int(inside(*command).strip().split(";")[0])
    return Job(number, home, home / f"{name}-{number}.out")


def compare(reference: Job, job: Job) -> str:
    """What is identical in both outputs. Raises DemoFailed when something is not."""
    wanted, got = (re.findall(r"^(?:step|rank) .*$", each.text(), re.MULTILINE) for each in (reference, job))
    if len([line for line in wanted if line.startswith("step")]) != STEPS:
        raise DemoFailed("the undisturbed training did not log every step")
    for number, (one, other) in enumerate(zip(wanted, got, strict=False), 1):
        if one != other:
            raise DemoFailed(f"line {number} differs: {one!r} undisturbed, {other!r} with the power cut")
    if len(wanted) != len(got):
        raise DemoFailed(f"the outputs have {len(wanted)} and {len(got)} lines")
    return f"all {STEPS} losses and the final weights are identical to those of the undisturbed run"


def watch(bar: Progress, job: Job, done: Callable[[], bool], what: str) -> None:
    """Show the steps of a job until `done`. However slow the machine: only a job that makes no step is given up."""
    task = bar.add_task("", total=STEPS)
    reached, moved = job.steps(), time.monotonic()
    while not done():
        steps = job.steps()
        bar.update(task, completed=steps)
        if steps != reached:
            reached, moved = steps, time.monotonic()
        if state(job) in ("FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"):
            raise DemoFailed(f"job {job.number} is {state(job)}:\n{job.text()[-2000:]}")
        if time.monotonic() > moved + PATIENCE_SECONDS:
            raise DemoFailed(
                f"no step for {PATIENCE_SECONDS:.0f} s while waiting for {what}; the job's output ends with\n"
                f"{job.text()[-500:]}"
            )
        time.sleep(POLL_SECONDS)
    bar.update(task, completed=job.steps())


def await_value(what: str, probe: Callable[[], T | None]) -> T:
    """The first true value of `probe`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with console.status(f"  waiting for {what}"):
        while not (value := probe()):
            if time.monotonic() > deadline:
                raise DemoFailed(f"{what} did not come within {PATIENCE_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
    return value


def restored(job: Job) -> dict[str, Any] | None:
    """The second attempt, once it is restored. Raises DemoFailed when it starts cold."""
    attempts = job.attempts()
    if len(attempts) < 2:
        return None
    if attempts[-1]["cold_start"]:
        raise DemoFailed(f"cold start: {attempts[-1]['cold_start']}")
    return attempts[-1] if attempts[-1]["restored_from"] is not None else None


def attempt_age(job: Job, seq: int, cut: float) -> float:
    """Seconds between the boundary of a checkpoint and the power cut."""
    taken = next(note["time"] for note in job.checkpoints() if note["seq"] == seq)
    return time.time() - (time.monotonic() - cut) - float(taken)


def steps_in(text: str) -> int:
    """The last step that an output mentions."""
    found = re.findall(r"^step (\d+) loss", text, re.MULTILINE)
    return int(found[-1]) if found else 0


def state(job: Job) -> str:
    """Slurm's state of a job."""
    return inside("squeue", "--noheader", "--states=all", f"--jobs={job.number}", "--format=%T").strip()


def inside(*command: str) -> str:
    """Run a command as alice on the login host; its output."""
    done = subprocess.run([CLUSTER, "run", "--", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DemoFailed(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def steps_bar() -> Progress:
    """A progress bar in steps."""
    columns = (TextColumn("    step {task.completed:>3.0f}/{task.total:.0f}"), BarColumn(40), TimeElapsedColumn())
    return Progress(*columns, console=console)


def say(text: str) -> None:
    """One thing that happens now."""
    console.print(f"[cyan]==>[/] {text}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
