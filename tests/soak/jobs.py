"""The jobs of one soak: submitted one by one, watched, judged at the end."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.harness import ENDED, Cluster, Job
from tests.soak.kinds import PAUSE, Kind, compare, compiled

UID = 1000  # alice
COLD = ("slurmckpt: cold start", "slurmckpt: no checkpoints")


@dataclass
class Submitted:
    """One job, which has a directory of its own. name: as squeue --array shows it. cancelled: by the soak."""

    name: str
    kind: Kind
    lines: int
    directory: Path
    job: Job
    cancelled: bool = False
    state: str = "PENDING"
    node: str = ""

    @property
    def ended(self) -> bool:
        """For good."""
        return self.state in ENDED


@dataclass
class Jobs:
    """All jobs of a soak. home: its directory below alice's."""

    cluster: Cluster
    home: Path
    interval: str
    all: list[Submitted] = field(default_factory=list)

    def prepare(self) -> None:
        """A fresh directory with the programs."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        here = Path(__file__).parent
        for program in [*(here / "programs").glob("*.py"), *(here.parent / "cluster/programs").glob("*.py")]:
            shutil.copy(program, self.home)
        compiled(self.home)
        os.chown(self.home, UID, UID)

    def submit(self, kind: Kind, lines: int) -> None:
        """One job of this kind; an array is one for each of its tasks."""
        directory = self.home / f"{len(self.all):03}-{kind.name}"
        directory.mkdir()
        os.chown(directory, UID, UID)
        for program in (path for path in self.home.iterdir() if path.is_file()):
            os.link(program, directory / program.name)
        script = directory / "job.sh"
        script.write_text("#!/bin/bash\n" + kind.script.replace("{lines}", str(lines)).replace("{pause}", str(PAUSE)))
        os.chown(script, UID, UID)
        inside = f"/home/alice/{directory.relative_to(self.cluster.home)}"
        output = "out-%a" if kind.tasks != ("",) else "out"
        done = self.cluster.run(
            "sbatch",
            "--parsable",
            f"--chdir={inside}",
            f"--output={inside}/{output}",
            f"--job-name={kind.name}",
            f"--checkpoint-interval={self.interval}",
            "--mem-per-cpu=300",
            *kind.options,
            f"{inside}/job.sh",
        )
        number = int(done.stdout.split(";")[0])
        for task in kind.tasks:
            # The tasks of an array get their own numbers when they start; look() finds them by array and task.
            name = f"{number}_{task}" if task else str(number)
            path = directory / (f"out-{task}" if task else "out")
            self.all.append(Submitted(name, kind, lines, directory, Job(self.cluster, number, path)))

    def look(self) -> None:
        """Ask Slurm for the state of all jobs."""
        done = self.cluster.run(
            "squeue", "--all", "--states=all", "--noheader", "--array", "--format=%i %A %T %N", check=False
        )
        if done.returncode != 0:
            return
        found = {}
        for line in done.stdout.splitlines():
            name, own, state, *node = line.split()
            found[name] = (int(own), state, node[0] if node else "")
        for one in self.all:
            if one.name in found:
                number, one.state, one.node = found[one.name]
                one.job = Job(self.cluster, number, one.job.output_path, one.name if "_" in one.name else "")

    def running(self) -> list[Submitted]:
        """Those that run now, as far as look() knows."""
        return [one for one in self.all if one.state == "RUNNING"]

    def left(self) -> list[Submitted]:
        """Those that have not ended."""
        return [one for one in self.all if not one.ended]

    def with_images(self, *states: str) -> list[Submitted]:
        """Jobs that have ended like this and have images in the store."""
        top = self.cluster.home.parent.parent / "store"

        def has_images(one: Submitted) -> bool:
            # What CRIU said of a dump that failed, in `logs`, stays as long as the record.
            found = top.glob(f"*/alice/{one.job.number}/*")
            return any(path.is_dir() and path.name != "logs" for path in found)

        return [one for one in self.all if one.state in states and has_images(one)]

    def judge(self) -> tuple[list[str], Counter[str]]:
        """What is wrong, one line each; and counts of what happened."""
        wrong: list[str] = []
        counts: Counter[str] = Counter()
        for one in self.all:
            complaints, happened = _judge(one)
            counts.update(happened)
            wrong += [f"job {one.job.number} ({one.kind.name}, {one.directory.name}): {text}" for text in complaints]
        return wrong, counts


def _judge(one: Submitted) -> tuple[list[str], Counter[str]]:
    counts: Counter[str] = Counter()
    record = one.job.status()
    attempts = record["attempts"]
    cold = [attempt["cold_start"] for attempt in attempts if attempt["cold_start"]]
    counts["attempts"] = len(attempts)
    counts["checkpoints"] = len(record["checkpoints"])
    counts["restores"] = sum(attempt["restored_from"] is not None for attempt in attempts)
    counts["cold starts, each with its reason"] = len(cold)
    counts[f"jobs {one.state.lower()}"] += 1
    wrong = []
    # A CRIU was killed in the middle of a dump (docs/reliability.md, "What cannot be saved").
    lost = any("so the pod is ended" in event["text"] for event in record.get("events", []))
    lost = lost or "slurmckpt: the task is killed: the leader of the pod was killed by signal 5\n" in one.job.output()
    # A rank that was executing what CRIU had injected dies of SIGTRAP itself; nothing else here sends that.
    ended = one.job.info()["exit_code"]
    lost = lost or ended["signal"]["id"]["number"] == signal.SIGTRAP
    counts["jobs lost with a CRIU that was killed"] = int(lost and one.state == "FAILED")
    if one.cancelled:
        if one.state not in ("CANCELLED", "COMPLETED", "FAILED"):
            wrong.append(f"was cancelled and is {one.state}")
    else:
        status = ended["return_code"]["number"]
        expected = "FAILED" if one.kind.status else "COMPLETED"
        if (one.state, status) != (expected, one.kind.status) and not (lost and one.state == "FAILED"):
            wrong.append(f"is {one.state} with status {status}, expected {expected} with {one.kind.status}")
    said = one.job.output()
    may_repeat = bool(cold) or any(line.startswith(COLD) for line in said.splitlines())
    complete = not one.cancelled and not wrong and not (lost and one.state == "FAILED")
    for name, lines in one.kind.files(one.lines).items():
        path = one.job.output_path if name == "out" else one.directory / name
        repeated = name in one.kind.repeats and may_repeat
        complaint = compare(path, lines, complete, repeated)
        if complaint:
            wrong.append(complaint)
    return wrong, counts
