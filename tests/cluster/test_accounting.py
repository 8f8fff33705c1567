"""Memory: Slurm counts and limits the ranks in a pod as it does without us."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Job, move, restored_from, wait_for
from tests.cluster.test_cleanup import assert_clean

MIB = 2**20
KEEPER = """import os, time
kept = os.urandom(150 << 20)
open(f"ready.{os.environ['SLURM_PROCID']}", "w").close()
while not os.path.exists("stop"): time.sleep(0.1)
"""
HOG = """import os, time
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.1)
kept = bytearray(1)
while True: kept += bytes(b"x" * (8 << 20))
"""
KINDS = ["without us", "fresh", "restored"]


def begin(cluster: Cluster, directory: Path, kind: str, script: str, ready: str, *options: str) -> Job:
    """A job that runs, and was restored for the last kind. ready: a file that it makes, or a line that it prints."""
    option = "off" if kind == "without us" else "infinite"
    job = cluster.submit(script, f"--checkpoint-interval={option}", *options, directory=directory)
    wait_for(f"{ready}", lambda: (directory / ready).exists() or f"{ready}\n" in job.output())
    if kind == "restored":
        job.checkpoint()
        move(job, job.node())
        restored_from(job)
    return job


def used(cluster: Cluster, step: str) -> tuple[int, int] | None:
    """Tasks, and the mean resident memory of a task in bytes, as sstat says; None when it says nothing yet."""
    done = cluster.run(
        "sstat", "--noheader", "--parsable2", "--noconvert", "-o", "NTasks,AveRSS", "-j", step, check=False
    )
    words = done.stdout.strip().split("|")
    return (int(words[0]), int(words[1])) if len(words) == 2 and words[1] else None


@pytest.mark.parametrize("kind", KINDS)
def test_sstat_counts_the_ranks(cluster: Cluster, directory: Path, kind: str) -> None:
    """Each of the two holds 150 MiB of its own, and Python."""
    (directory / "keep.py").write_text(KEEPER)
    job = begin(cluster, directory, kind, "srun -n2 python3 keep.py", "ready.1", "--ntasks=2", "--mem=1000")
    wait_for("rank 0", lambda: (directory / "ready.0").exists())

    def counted() -> bool:
        found = used(cluster, f"{job.number}.0")
        return found is not None and found[0] == 2 and 150 * MIB < found[1] < 180 * MIB

    # Slurm takes a sample every 5 s.
    wait_for(lambda: f"150 MiB a task, not {used(cluster, f'{job.number}.0')}", counted)
    (directory / "stop").touch()
    assert job.wait_end() == "COMPLETED", job.output()


@pytest.mark.parametrize("kind", KINDS)
def test_sstat_counts_a_script_without_srun(cluster: Cluster, directory: Path, kind: str) -> None:
    """In its shell's child."""
    (directory / "keep.py").write_text(KEEPER)
    job = begin(cluster, directory, kind, "python3 keep.py; true", "ready.0", "--mem=1000")

    def counted() -> bool:
        found = used(cluster, f"{job.number}.batch")
        return found is not None and found[0] == 1 and 150 * MIB < found[1] < 190 * MIB

    wait_for(lambda: f"150 MiB, not {used(cluster, f'{job.number}.batch')}", counted)
    (directory / "stop").touch()
    assert job.wait_end() == "COMPLETED", job.output()


@pytest.mark.parametrize("kind", KINDS)
def test_out_of_memory(cluster: Cluster, directory: Path, kind: str) -> None:
    """A script whose program is killed for its memory: the job's state says so."""
    (directory / "hog.py").write_text(HOG)
    job = begin(cluster, directory, kind, "python3 hog.py", "ready", "--mem=200")
    node = job.node()
    (directory / "go").touch()
    assert job.wait_end() == "OUT_OF_MEMORY", job.output()
    assert job.info()["exit_code"]["return_code"]["number"] == 0
    assert job.info()["exit_code"]["signal"]["id"]["number"] == 125
    assert "Killed" in job.output() and "oom_kill event" in job.output()
    assert_clean(cluster, node)
