"""Real programs: a checkpoint, a requeue, and the result on the other node is that of an undisturbed run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.harness import GATE, Cluster, events, finish, move, restored_from

# Each prints {steps} lines and rests after each of them.
PROGRAMS = {
    # Its session's files lie in the node's own /tmp.
    "openmpi": "mpirun --bind-to none --map-by :OVERSUBSCRIBE -n 4 ./heat {steps} {milliseconds}",
    "r": "Rscript walk.R {steps} {seconds}",
    # It keeps a file for jstat mapped, which is always in the node's own /tmp.
    "java": "java -Xmx128m Grind.java {steps} {milliseconds}",
    # Its job server is a named pipe in a directory of the node. Not in /tmp itself: that of a make that was killed stays
    # there, with a pid in its name that the next one has, too.
    "make": "d=/tmp/make.$SLURM_JOB_ID; mkdir -p $d; TMPDIR=$d make -s -j3 -f jobs.mk steps={steps} pause={seconds}",
    "node": "node ticker.js {steps} {milliseconds}",
    "web": "python3 web.py {steps} {seconds}",
    "redis": "python3 redis_load.py {steps} {seconds}",
    "jupyter": "python3 notebook.py {steps} {seconds}",
}
STEPS = 30


def command(program: str, pause: float) -> str:
    """Its shell command, resting for `pause` seconds after each line."""
    return PROGRAMS[program].format(steps=STEPS, milliseconds=int(pause * 1000), seconds=pause)


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_a_program_goes_on_elsewhere(cluster: Cluster, directory: Path, program: str) -> None:
    """Its output is exactly that of a run that nobody disturbed, which writes its files elsewhere."""
    if program == "openmpi":
        cluster.run("sh", "-c", f"cd {directory.name} && mpicc -O2 -o heat heat.c")
    job = cluster.submit(
        f"{command(program, 0.2)}\n{GATE}",
        "--checkpoint-interval=infinite",
        "--ntasks=4",
        "--time=5",
        directory=directory,
    )
    job.wait_output("^5 ")
    seq = job.checkpoint()
    job.wait_output("^8 ")
    move(job, job.node())
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    assert not events(job)
    alone = cluster.directory(f"{directory.name}-alone")
    if program == "openmpi":
        os.link(directory / "heat", alone / "heat")
    wanted = cluster.run("bash", "-c", f"cd {alone.name} && {command(program, 0)}").stdout
    assert job.output() == wanted and len(wanted.splitlines()) >= STEPS
