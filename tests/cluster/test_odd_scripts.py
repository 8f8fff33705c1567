"""Scripts that are not written as in a tutorial."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.harness import Cluster, chain, events, finish, move, restored_from, wait_for

MANUAL = "--checkpoint-interval=infinite"


def lines(path: Path) -> list[str]:
    """Of a file that may not be there yet."""
    return path.read_text().splitlines() if path.exists() else []


def test_a_script_that_starts_one_short_srun_after_the_other(cluster: Cluster, directory: Path) -> None:
    """There is hardly a moment at which none begins or ends."""
    script = "n=0; while [ ! -e stop ]; do srun -n1 true && echo $((n++)); done; echo end"
    job = cluster.submit(script, MANUAL, directory=directory)
    job.wait_output("^5$")
    seq = job.checkpoint()
    move(job, job.node())
    assert restored_from(job) == seq
    before = len(job.output().splitlines())
    job.wait_output(f"^{before + 3}$")
    (directory / "stop").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    *numbers, last = job.output().splitlines()
    assert numbers == [str(number) for number in range(len(numbers))] and last == "end"


def test_an_srun_that_names_its_node(cluster: Cluster, directory: Path) -> None:
    """In the middle, and one that is started with the old name after the move."""
    script = """
node=$(hostname)
srun --nodelist=$node -n1 python3 chain.py 100 0.1 progress
srun -n1 -w $node sh -c 'echo $SLURMD_NODENAME'
"""
    job = cluster.submit(script, MANUAL, directory=directory, held=True)
    wait_for("the step has begun", lambda: len(lines(directory / "progress")) > 5)
    seq = job.checkpoint()
    old = job.node()
    move(job, old)
    assert restored_from(job) == seq
    new = job.node()
    assert finish(job) == "COMPLETED", job.output()
    assert job.output().splitlines() == [*chain(100), new]
    assert f"an srun that names node {old} runs on {new}" in events(job)


def test_an_srun_inside_a_step_is_not_captured(cluster: Cluster, directory: Path) -> None:
    script = "srun -n1 --overlap sh -c 'srun -n1 --overlap python3 chain.py 1000 0.1 progress; echo inner $?'; echo end"
    job = cluster.submit(script, MANUAL, directory=directory)
    wait_for("the inner step has begun", lambda: len(lines(directory / "progress")) > 5)
    refused = cluster.run("slurmckpt", "checkpoint", job.name, check=False)
    assert "is connected to Slurm by itself, and its step would not come back" in refused.stderr + refused.stdout
