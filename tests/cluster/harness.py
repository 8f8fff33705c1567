"""The sandbox cluster, as the tests use it: run commands, submit jobs, wait for what they do, break nodes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

TREE = Path(__file__).resolve().parents[2]
T = TypeVar("T")
POLL_SECONDS = 0.1
ENDED = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "DEADLINE",
    "PREEMPTED",
)
# The example training with two DDP ranks, which can be held, and what it needs.
TRAIN = """
export MASTER_ADDR=$(hostname) MASTER_PORT=$((20000 + SLURM_JOB_ID)) USE_LIBUV=0
srun -n2 python3 held_train.py --steps {steps} --width 32
"""
STEPS = 160
DDP = ("--ntasks=2", "--mem=4000")
# At the end of a script: the job does not end before finish().
GATE = "until [ -e go ]; do sleep 0.1; done"


def wait_for(what: str | Callable[[], str], probe: Callable[[], T | None], timeout: float = 120.0) -> T:
    """The first true value of `probe`; AssertionError that names `what`, as it is then, when it does not come in time."""
    deadline = time.monotonic() + timeout
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what if isinstance(what, str) else what()} did not happen within {timeout:.0f} s")
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class Cluster:
    """The cluster that `sandbox/cluster up` has brought up. home: the host directory that is /home/alice in it."""

    home: Path

    def run(
        self,
        *command: str,
        user: str = "alice",
        node: str = "login",
        check: bool = True,
        stdin: str = "",
        timeout: float = 240,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside; its output as text."""
        done = subprocess.run(
            [str(TREE / "sandbox/cluster"), "run", "--user", user, "--node", node, "--", *command],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not check or done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done

    def verb(self, *words: str) -> None:
        """`sandbox/cluster fail|cut|start NODE`."""
        done = subprocess.run([str(TREE / "sandbox/cluster"), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"sandbox/cluster {' '.join(words)}:\n{done.stdout}{done.stderr}"

    def root(self, node: str, script: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell script as root on a node."""
        return self.run("sh", "-c", script, user="root", node=node, check=check)

    def submit(
        self, script: str, *options: str, name: str = "job", directory: Path | None = None, held: bool = False
    ) -> Job:
        """Submit a batch script; its output goes to NAME-<job>.out in the directory.

        held: programs that heed it (programs/holding.py) do a quarter of their work only after release().
        """
        directory = directory or self.home
        if held:
            (directory / "hold").touch()
        path = directory / f"{name}.sh"
        path.write_text(script if script.startswith("#!") else f"#!/bin/bash\n{script}")
        os.chown(path, 1000, 1000)
        inside = f"/home/alice/{path.relative_to(self.home)}"
        where = os.path.dirname(inside)
        done = self.run("sbatch", "--parsable", f"--chdir={where}", f"--output={where}/{name}-%j.out", *options, inside)
        number = int(done.stdout.split(";")[0])
        return Job(self, number, directory / f"{name}-{number}.out")

    def directory(self, name: str) -> Path:
        """A fresh directory of alice's with the test programs and the example training in it."""
        path = self.home / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        for program in [*(Path(__file__).parent / "programs").iterdir(), TREE / "examples/train.py"]:
            shutil.copy(program, path)
        os.chown(path, 1000, 1000)
        return path

    def all_idle(self) -> None:
        """Wait until every node is idle, and assert that none is drained."""

        def idle() -> bool:
            states = self.run("sinfo", "-h", "-N", "-o", "%N %T").stdout.split("\n")
            return all(line.split()[1] == "idle" for line in states if line)

        assert "drain" not in self.run("sinfo", "-h", "-N", "-o", "%N %T %E").stdout
        wait_for("all nodes idle", idle)


@dataclass(frozen=True)
class Job:
    """A submitted job. number: its raw id. array: `12_3` for a task of an array."""

    cluster: Cluster
    number: int
    output_path: Path
    array: str = ""

    @property
    def name(self) -> str:
        """As Slurm's commands call it."""
        return self.array or str(self.number)

    def info(self) -> dict[str, Any]:
        """scontrol's view of it."""
        jobs = json.loads(self.cluster.run("scontrol", "show", "job", str(self.number), "--json").stdout)["jobs"]
        # The raw id of an array's last task is the array's, too.
        found: dict[str, Any] = next(job for job in jobs if job["job_id"] == self.number)
        return found

    def tasks(self) -> dict[int, Job]:
        """The tasks of this array that stand for themselves, by number."""
        jobs = json.loads(self.cluster.run("scontrol", "show", "job", str(self.number), "--json").stdout)["jobs"]
        return {
            job["array_task_id"]["number"]: Job(
                self.cluster,
                job["job_id"],
                self.output_path.with_name(self.output_path.name.replace(f"-{self.number}.", f"-{job['job_id']}.")),
                f"{self.number}_{job['array_task_id']['number']}",
            )
            for job in jobs
            if job["array_task_id"]["set"]
        }

    def state(self) -> str:
        """Slurm's base state and flags, joined by blanks."""
        return " ".join(self.info()["job_state"])

    def node(self) -> str:
        """Where it runs."""
        return str(self.info()["nodes"])

    def output(self) -> str:
        """What it has printed so far."""
        try:
            return self.output_path.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def status(self) -> dict[str, Any]:
        """`slurmckpt status JOB --json`."""
        done = self.cluster.run("slurmckpt", "status", self.name, "--json", check=False)
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"checkpoints": [], "attempts": []}
        return found

    def checkpoint(self) -> int:
        """Take one now; its sequence number."""
        done = self.cluster.run("slurmckpt", "checkpoint", self.name)
        match = re.search(r"checkpoint #(\d+) committed", done.stdout)
        assert match, done.stdout + done.stderr
        return int(match[1])

    def wait_running(self, timeout: float = 120) -> str:
        """Wait until it runs; the node."""
        wait_for(f"job {self.number} running", lambda: self.state() == "RUNNING", timeout)
        return self.node()

    def wait_output(self, pattern: str, timeout: float = 120) -> re.Match[str]:
        """Wait until its output matches."""
        return wait_for(
            lambda: f"{pattern!r} in the output of job {self.number}:\n{self.output()[-2000:]}",
            lambda: re.search(pattern, self.output(), re.MULTILINE),
            timeout,
        )

    def wait_checkpoints(self, count: int, timeout: float = 120) -> list[dict[str, Any]]:
        """Wait until so many checkpoints have been committed in its whole life."""

        def enough() -> list[dict[str, Any]] | None:
            found: list[dict[str, Any]] = self.status()["checkpoints"]
            return found if len(found) >= count else None

        return wait_for(f"{count} checkpoints of job {self.number}", enough, timeout)

    def wait_end(self, timeout: float = 180) -> str:
        """Wait until it has ended for good; its state."""

        def ended() -> str | None:
            state = self.state()
            return state if state.split()[0] in ENDED and "COMPLETING" not in state else None

        return wait_for(
            lambda: f"the end of job {self.number} ({self.state()}):\n{self.output()[-2000:]}", ended, timeout
        )

    def requeue(self) -> None:
        """scontrol requeue."""
        self.cluster.run("scontrol", "requeue", self.name)

    def cancel(self) -> None:
        """scancel, when it still runs."""
        self.cluster.run("scancel", self.name, check=False)


@contextmanager
def settings(cluster: Cluster, text: str) -> Iterator[None]:
    """The site's settings with these lines added."""
    file = "/etc/slurmckpt/slurmckpt.toml"
    cluster.root("ctl", f"cp {file} {file}.test && cat >>{file} <<'END'\n{text}\nEND")
    try:
        yield
    finally:
        cluster.root("ctl", f"mv {file}.test {file}")


@contextmanager
def drained(cluster: Cluster, nodes: Sequence[str]) -> Iterator[None]:
    """Keep new jobs off these nodes."""
    for node in nodes:
        cluster.root("ctl", f"scontrol update nodename={node} state=drain reason=test")
    try:
        yield
    finally:
        for node in nodes:
            cluster.root("ctl", f"scontrol update nodename={node} state=resume")


def release(job: Job) -> None:
    """Let a job come to its end that was submitted with held=True, or ends with GATE."""
    (job.output_path.parent / "hold").unlink(missing_ok=True)
    (job.output_path.parent / "go").touch()


def finish(job: Job, timeout: float = 180) -> str:
    """Release it and wait for its end; its state."""
    release(job)
    return job.wait_end(timeout)


def events(job: Job) -> list[str]:
    """What its record says beside attempts and checkpoints, and beside what an older pasta (Debian trixie's) lacks."""
    texts = [event["text"] for event in job.status().get("events", [])]
    return [text for text in texts if "is reached from outside only if the kernel has chosen it" not in text]


def training_lines(job: Job) -> list[str]:
    """The lines that the training itself printed."""
    return re.findall(r"^(?:step|rank) .*$", job.output(), re.MULTILINE)


def chain(count: int) -> list[str]:
    """What chain.py prints."""
    lines, state = [], b"start"
    for number in range(count):
        state = hashlib.sha256(state).digest()
        lines.append(f"{number} {state.hex()}")
    return lines


def ring(count: int, workers: int) -> list[str]:
    """What ring.py prints."""
    lines, state = [], b"ring".ljust(32)
    for number in range(count):
        lines.append(f"{number} {state.hex()}")
        for _ in range(workers):
            state = hashlib.sha256(state).digest()
    return lines


def move(job: Job, node: str) -> None:
    """Requeue a running job so that it starts on another node than `node`; wait until it does."""
    with drained(job.cluster, [node]):
        job.requeue()
        wait_for(f"job {job.number} on another node", lambda: job.state() == "RUNNING" and job.node() != node)


def restored_from(job: Job) -> int:
    """The checkpoint that the last attempt came from; waits until that is known."""

    def found() -> int | None:
        attempts = job.status()["attempts"]
        last = attempts[-1]
        assert last["cold_start"] is None, last
        seq: int | None = last["restored_from"] if len(attempts) > 1 else None
        return seq

    return wait_for(lambda: f"the restore of job {job.number}:\n{job.output()[-1500:]}", found)


def wait_attempts(job: Job, count: int) -> None:
    """Wait until so many incarnations have begun."""
    wait_for(f"attempt {count}", lambda: len(job.status()["attempts"]) == count)
