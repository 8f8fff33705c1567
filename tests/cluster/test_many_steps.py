"""A script that starts one short srun after the other: each is as quick as without us, and nothing grows with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Job, move, restored_from, wait_for

# The coordinator keeps the last hundred steps; more of them must not make it larger. 48 kB a step were once kept.
SETTLED, LATER = 150, 400
GROWTH_KB = 4000
LOOP = """
for i in $(seq {count}); do
  before=$EPOCHREALTIME; srun -n1 true || echo "srun $i: $?"; echo "$i $before $EPOCHREALTIME" >>progress
done
echo end
"""


def numbers(directory: Path) -> list[int]:
    """Of the sruns that have ended, in order."""
    progress = directory / "progress"
    return [int(line.split()[0]) for line in progress.read_text().splitlines()] if progress.exists() else []


def coordinator(job: Job) -> tuple[int, int]:
    """Its resident memory in kB, and how many descriptors it has."""
    script = f"read pid rest </run/slurmckpt/{job.number}/coordinator.pid; grep VmRSS /proc/$pid/status; ls /proc/$pid/fd | wc -l"
    words = job.cluster.root(job.node(), script).stdout.split()
    return int(words[1]), int(words[3])


@pytest.mark.long
def test_nothing_grows_with_the_number_of_sruns(cluster: Cluster, directory: Path) -> None:
    """Memory, descriptors, record and manifest; and the loop goes on elsewhere without losing or repeating an srun."""
    job = cluster.submit(LOOP.format(count=LATER + 20), "--checkpoint-interval=10s", directory=directory)
    wait_for(f"{SETTLED} sruns", lambda: len(numbers(directory)) >= SETTLED, 240)
    memory, descriptors = coordinator(job)
    wait_for(f"{LATER} sruns", lambda: len(numbers(directory)) >= LATER, 240)
    memory_later, descriptors_later = coordinator(job)
    assert memory_later - memory < GROWTH_KB
    assert abs(descriptors_later - descriptors) < 40  # those of one srun that is just starting, or of a checkpoint
    assert len(job.status()["attempts"][0]["steps"]) <= 101
    seq = job.checkpoint()
    move(job, job.node())
    assert restored_from(job) == seq
    assert job.wait_end() == "COMPLETED"
    assert job.output().splitlines() == ["end"]
    assert numbers(directory) == list(range(1, LATER + 21))


def test_an_srun_does_not_wait_for_slurmstepd_to_look_again(cluster: Cluster, directory: Path) -> None:
    """It sleeps for a second when it finds something of a step alive after the last task. The quickest had no such wait."""
    job = cluster.submit(LOOP.format(count=5), "--checkpoint-interval=infinite", directory=directory)
    assert job.wait_end() == "COMPLETED"
    spent = [
        float(line.split()[2]) - float(line.split()[1]) for line in (directory / "progress").read_text().splitlines()
    ]
    assert len(spent) == 5
    assert min(spent) < 1
