"""The batch script is part of the job: its shell is restored in the middle of its line, with the sruns that it waits for."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.cluster.harness import GATE, Cluster, Job, chain, move, release, restored_from, wait_for

MANUAL = "--checkpoint-interval=infinite"


def move_at(job: Job, pattern: str) -> None:
    """Checkpoint when its output matches, let it go on a little, and restore it on the other node."""
    job.wait_output(pattern)
    attempts = len(job.status()["attempts"])
    seq = job.checkpoint()
    move(job, job.node())
    wait_for("the next attempt", lambda: len(job.status()["attempts"]) == attempts + 1)
    assert restored_from(job) == seq


def finished(job: Job) -> list[str]:
    """What it has printed in its whole life."""
    assert job.wait_end() == "COMPLETED", job.output()
    return job.output().splitlines()


def test_the_preamble_runs_once_however_often_the_job_is_requeued(cluster: Cluster, directory: Path) -> None:
    """Variables, functions and loops go on from where they were; each step is restored in the middle."""
    script = """
echo preamble; echo once >>effects; rm -rf out; mkdir out; token=$RANDOM$RANDOM; echo $token >token
step() { srun python3 chain.py 60 0.1 out/$1 >out/$1.stdout; }
for i in 1 2 3; do step $i; echo "done $i"; [ $token = $(cat token) ] || echo "another token"; done
echo end
"""
    job = cluster.submit(script, MANUAL, directory=directory)
    for number in (1, 2):
        (directory / "hold").touch()
        wait_for("the step prints", partial(has_lines, directory / f"out/{number}.stdout", 10))
        move_at(job, "preamble")
        (directory / "hold").unlink()
        job.wait_output(f"^done {number}")
    assert finished(job) == ["preamble", "done 1", "done 2", "done 3", "end"]
    assert read(directory / "effects") == ["once"]
    for number in (1, 2, 3):
        assert read(directory / f"out/{number}.stdout") == chain(60)
        assert read(directory / f"out/{number}") == chain(60)


def has_lines(path: Path, count: int) -> bool:
    """Whether a file has more lines than that."""
    return len(read(path)) > count


def read(path: Path) -> list[str]:
    """The lines of a file that may not be there yet."""
    try:
        return path.read_text().splitlines()
    except FileNotFoundError:
        return []


NUMBERS = [str(number) for number in range(1, 301)]
SRUN = "srun -n1 --overlap"
CHAIN = "python3 chain.py 80 0.1 progress"
PLACES = {
    "substitution": (f'x=$({SRUN} {CHAIN}); echo "$x"', chain(80)),
    "pipe": (f"{SRUN} {CHAIN} | tac", chain(80)[::-1]),
    "two in a pipe": (f"{SRUN} {CHAIN} | {SRUN} cat", chain(80)),
    "while read": (
        f"seq 4 >list; while read x <&3; do {SRUN} python3 chain.py 20 0.1 progress; echo $x; done 3<list",
        [line for number in "1234" for line in [*chain(20), number]],
    ),
    "fed by a program": (f"{CHAIN} | {SRUN} cat", chain(80)),
    "fed faster than it reads": (f"seq 300 | {SRUN} python3 sip.py 0.02 progress", NUMBERS),
    "fed by a file": (f"seq 300 >list; {SRUN} python3 sip.py 0.02 progress <list", NUMBERS),
    "here document": (f"{SRUN} python3 sip.py 0.02 progress <<END\n$(seq 300)\nEND", NUMBERS),
    "background": (
        f"{{ {SRUN} {CHAIN} & {SRUN} python3 chain.py 80 0.1 other & wait; }} | sort",
        sorted(chain(80) * 2),
    ),
    "same command twice": (
        f"{SRUN} {CHAIN} >one & {SRUN} {CHAIN} >two & wait; cat one two",
        chain(80) * 2,
    ),
    "function and condition": (
        f"step() {{ if {SRUN} python3 chain.py 60 0.1 progress 3; then echo yes; else echo no $?; fi; }}; step",
        [*chain(60), "srun: error: NODE: task 0: Exited with exit code 3", "no 3"],
    ),
    "nobody reads on": (f"{SRUN} {CHAIN} 2>/dev/null | head -n 40", chain(40)),
}


@pytest.mark.parametrize("place", PLACES)
def test_sruns_in_all_places_of_a_script(cluster: Cluster, directory: Path, place: str) -> None:
    """The checkpoint falls into the middle of a step; what the script makes of its output is the same."""
    script, wanted = PLACES[place]
    job = cluster.submit(f"{script}\n{GATE}", MANUAL, "--ntasks=2", directory=directory, held=True)
    wait_for("the step has begun", partial(has_lines, directory / "progress", 10))
    seq = job.checkpoint()
    move(job, job.node())
    assert restored_from(job) == seq
    node = job.node()
    release(job)
    assert finished(job) == [line.replace("NODE", node) for line in wanted]


def test_a_script_asks_for_its_own_checkpoint(cluster: Cluster, directory: Path) -> None:
    """The command does not wait, as it is part of what is captured. What follows it may not have begun by then."""
    script = "slurmckpt checkpoint $SLURM_JOB_ID; python3 chain.py 100 0.1"
    job = cluster.submit(script, MANUAL, directory=directory, held=True)
    (note,) = job.wait_checkpoints(1)
    move(job, job.node())
    assert restored_from(job) == note["seq"]
    release(job)
    wanted = f"job {job.number}: checkpoint requested; it is taken when this command has ended"
    assert finished(job) == [wanted, *chain(100)]


def test_a_signal_of_the_script_reaches_its_step_once(cluster: Cluster, directory: Path) -> None:
    """Before the checkpoint and after the restore. At SIGTERM srun kills its step (signal 9), with us and without."""
    script = """
trap '' USR1
srun -n1 python3 signals.py progress & pid=$!
while [ ! -e first ]; do sleep 0.1; done; kill -USR1 $pid
while [ ! -e second ]; do sleep 0.1; done; kill -USR1 $pid
while [ ! -e third ]; do sleep 0.1; done; kill -TERM $pid
wait $pid; echo "ended with $?"
"""
    job = cluster.submit(script, MANUAL, directory=directory)
    wait_for("the step has begun", partial(has_lines, directory / "progress", 0))
    (directory / "first").touch()
    wait_for("the first signal", partial(has_lines, directory / "progress", 1))
    seq = job.checkpoint()
    move(job, job.node())
    assert restored_from(job) == seq
    (directory / "second").touch()
    wait_for("the second signal", partial(has_lines, directory / "progress", 2))
    (directory / "third").touch()
    assert finished(job)[-1] == "ended with 137"
    assert read(directory / "progress") == ["ready", "USR1", "USR1"]
