"""A script that starts one short srun after the other: each is as quick as without us, and nothing grows with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Job, move, restored_from, wait_for

# The coordinator keeps the last hundred steps. Of all others it once kept 22 objects each, 48 kB. Those of one srun that is
# just starting, and of a checkpoint, come and go.
SETTLED, LATER, MOVED = 150, 400, 20
COME_AND_GO = 500
LOOP = """
for ((i = 1; ; i++)); do
  before=$EPOCHREALTIME; srun -n1 true || echo "srun: $?"; echo "$i $before $EPOCHREALTIME"
  [ -e stop ] && break
done
"""
# Before Python 3.14 nobody can be asked for the objects that it has.
COUNT = """
read pid rest </run/slurmckpt/{job}/coordinator.pid
ls /proc/$pid/fd | wc -l
cp {program} /tmp/census.py; rm -f /tmp/census
/opt/slurmckpt/bin/python -c "import sys; sys.remote_exec($pid, '/tmp/census.py')" 2>/dev/null || exec echo 0
while [ ! -e /tmp/census ]; do sleep 0.05; done; cat /tmp/census
"""


def numbers(job: Job) -> list[int]:
    """Of the sruns that have ended, in order. ValueError: there is another line."""
    return [int(line.split()[0]) for line in job.output().split("\n")[:-1]]


def coordinator(job: Job, program: str) -> tuple[int, int]:
    """How many descriptors it has, and how many objects; of these 0 when that cannot be known."""
    script = COUNT.format(job=job.number, program=program)
    descriptors, objects = job.cluster.root(job.node(), script).stdout.split()
    return int(descriptors), int(objects)


@pytest.mark.long
def test_nothing_grows_with_the_number_of_sruns(cluster: Cluster, directory: Path) -> None:
    """Objects, descriptors and the record; and the loop goes on elsewhere without losing or repeating an srun."""
    job = cluster.submit(LOOP, "--checkpoint-interval=infinite", directory=directory)
    program = f"/home/alice/{directory.name}/census.py"
    wait_for(f"{SETTLED} sruns", lambda: len(numbers(job)) >= SETTLED, 240)
    job.checkpoint()
    descriptors, objects = coordinator(job, program)
    wait_for(f"{LATER} sruns", lambda: len(numbers(job)) >= LATER, 240)
    descriptors_later, objects_later = coordinator(job, program)
    assert abs(objects_later - objects) < COME_AND_GO
    assert abs(descriptors_later - descriptors) < 40
    assert len(job.status()["attempts"][0]["steps"]) <= 101
    seq = job.checkpoint()
    move(job, job.node())
    assert restored_from(job) == seq
    wait_for("more sruns", lambda: len(numbers(job)) >= LATER + MOVED, 240)
    (directory / "stop").touch()
    assert job.wait_end() == "COMPLETED"
    assert numbers(job) == list(range(1, len(numbers(job)) + 1))


def test_an_srun_does_not_wait_for_slurmstepd_to_look_again(cluster: Cluster, directory: Path) -> None:
    """It sleeps for a second when it finds something of a step alive after the last task. The quickest had no such wait."""
    job = cluster.submit(LOOP, "--checkpoint-interval=infinite", directory=directory)

    def seconds() -> list[float]:
        times = [line.split() for line in job.output().split("\n")[:-1]]
        return sorted(float(after) - float(before) for _, before, after in times)

    # On a busy machine most of them take longer, by whatever they wait for.
    wait_for(lambda: f"an srun that takes less than a second: {seconds()}", lambda: seconds()[:1] < [1.0] and seconds())
    (directory / "stop").touch()
    assert job.wait_end() == "COMPLETED"
