"""`scontrol suspend`: every process of the job stands still, no checkpoint is taken, and all goes on at `resume`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Job, move, restored_from, wait_for

SCRIPTS = {
    "step": ("srun -n2 python3 ticks.py rank", ("rank0", "rank1")),
    "batch": ("exec python3 ticks.py batch", ("batch0",)),
}


def ticks(directory: Path, names: tuple[str, ...]) -> dict[str, int]:
    """How far each process has come, and the child of each."""
    every = [name + kind for name in names for kind in ("", ".child")]
    paths = {name: directory / f"{name}.ticks" for name in every}
    return {name: path.stat().st_size if path.exists() else 0 for name, path in paths.items()}


def wait_progress(directory: Path, names: tuple[str, ...]) -> None:
    """Wait until every one of them has moved."""
    before = ticks(directory, names)
    wait_for(
        f"progress of all after {before}",
        lambda: all(now > before[name] for name, now in ticks(directory, names).items()),
    )


def suspend(cluster: Cluster, job: Job, directory: Path, names: tuple[str, ...]) -> None:
    """Suspend it; none of its processes moves any more."""
    cluster.root("ctl", f"scontrol suspend {job.number}")
    wait_for("SUSPENDED", lambda: job.state() == "SUSPENDED")

    def still() -> bool:
        # Thirty ticks' time: only time can show that there is none.
        before = ticks(directory, names)
        time.sleep(1.5)
        return ticks(directory, names) == before

    wait_for("all to stand still", still)


def resume(cluster: Cluster, job: Job) -> None:
    """Let it go on."""
    cluster.root("ctl", f"scontrol resume {job.number}")
    wait_for("RUNNING", lambda: job.state() == "RUNNING")


@pytest.mark.parametrize("kind", SCRIPTS)
@pytest.mark.parametrize("option", [pytest.param("off", marks=pytest.mark.long), "1s"])
def test_suspend_and_resume(cluster: Cluster, directory: Path, kind: str, option: str) -> None:
    """Without us as well: that the test can tell. SIGTSTP is caught, so it is not that which stops them."""
    script, names = SCRIPTS[kind]
    job = cluster.submit(script, f"--checkpoint-interval={option}", "--ntasks=2", directory=directory)
    wait_progress(directory, names)
    for _ in range(2):
        if option != "off":
            job.wait_checkpoints(len(job.status()["checkpoints"]) + 1)
        suspend(cluster, job, directory, names)
        if option != "off":
            words = ["checkpoint", "--here", str(job.number), str(job.number)]
            refused = cluster.run("slurmckpt", *words, node=job.node())
            assert json.loads(refused.stdout) == {"error": "the job is suspended"}
            # One that was captured before may still be committed.
            since = time.time()
            # Three intervals of its timer.
            time.sleep(3)
            assert all(note["time"] < since for note in job.status()["checkpoints"])
        resume(cluster, job)
        wait_progress(directory, names)
    if option != "off":
        # The timer has gone on, and what it takes is of a job that runs.
        job.wait_checkpoints(len(job.status()["checkpoints"]) + 2)
        move(job, job.node())
        restored_from(job)
        wait_progress(directory, names)
    (directory / "stop").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    assert "checkpoint skipped" not in job.output()


@pytest.mark.long
def test_a_suspended_job_that_loses_its_node(cluster: Cluster, directory: Path) -> None:
    """Slurm holds it then, as `scontrol suspend` has set its priority to 0. Released, it runs, from before the suspension."""
    script, names = SCRIPTS["step"]
    job = cluster.submit(script, "--checkpoint-interval=infinite", "--ntasks=2", directory=directory)
    wait_progress(directory, names)
    seq, node = job.checkpoint(), job.node()
    suspend(cluster, job, directory, names)
    cluster.verb("fail", node)
    try:
        wait_for("the requeue", lambda: "PENDING" in job.state(), 90)
        cluster.root("ctl", f"scontrol release {job.number}")
        wait_for("another node", lambda: job.state() == "RUNNING" and job.node() != node, 90)
        assert restored_from(job) == seq
        wait_progress(directory, names)
        (directory / "stop").touch()
        assert job.wait_end() == "COMPLETED", job.output()
    finally:
        cluster.verb("start", node)


def test_a_suspended_job_is_requeued(cluster: Cluster, directory: Path) -> None:
    """Slurm takes it, and holds it, as a suspended job has priority 0. Released, it goes on."""
    script, names = SCRIPTS["step"]
    job = cluster.submit(script, "--checkpoint-interval=infinite", "--ntasks=2", directory=directory)
    wait_progress(directory, names)
    seq = job.checkpoint()
    suspend(cluster, job, directory, names)
    job.requeue()
    wait_for("the job to be held", lambda: job.state() == "PENDING" and job.info()["hold"])
    cluster.root("ctl", f"scontrol release {job.number}")
    wait_for("the next run", lambda: len(job.status()["attempts"]) == 2)
    assert restored_from(job) == seq
    wait_progress(directory, names)
    (directory / "stop").touch()
    assert job.wait_end() == "COMPLETED", job.output()


def test_a_suspended_job_is_cancelled(cluster: Cluster, directory: Path) -> None:
    """Nothing has to be woken for it."""
    script, names = SCRIPTS["step"]
    job = cluster.submit(script, "--checkpoint-interval=1s", "--ntasks=2", directory=directory)
    wait_progress(directory, names)
    suspend(cluster, job, directory, names)
    job.cancel()
    assert job.wait_end().split()[0] == "CANCELLED"
