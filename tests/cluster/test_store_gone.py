"""A job's directory in the store is removed under it: by its user, by a script that tidies up, by whomever."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cluster.harness import Cluster, Job, chain, events, move, restored_from, wait_attempts, wait_for

INFINITE = "--checkpoint-interval=infinite"
SCRIPT = "echo run >>runs; python3 chain.py 60 0.1; until [ -e go ]; do sleep 0.1; done"


def place(cluster: Cluster, job: Job) -> Path:
    """Its directory."""
    (found,) = cluster.home.parent.parent.glob(f"store/*/alice/{job.number}")
    return found


def test_while_it_runs_the_next_checkpoint_makes_it_anew(cluster: Cluster, directory: Path) -> None:
    """And the job is restored from that one. Its record is whole again, too."""
    job = cluster.submit(SCRIPT, INFINITE, directory=directory)
    job.wait_output("^10 ")
    assert job.checkpoint() == 1
    gone = place(cluster, job)
    shutil.rmtree(gone)
    assert job.checkpoint() == 2
    move(job, job.node())
    wait_attempts(job, 2)
    assert restored_from(job) == 2
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    assert job.output().splitlines() == chain(60)
    assert (directory / "runs").read_text() == "run\n"
    (event,) = events(job)
    assert event.startswith("store directory ") and event.endswith(
        " was removed, with the checkpoints in it, and made anew"
    )


def test_while_it_waits_it_starts_cold_and_is_told(cluster: Cluster, directory: Path) -> None:
    """Nothing in the store says that it ever ran; Slurm's count of its requeues does."""
    job = cluster.submit(SCRIPT, INFINITE, directory=directory)
    job.wait_output("^10 ")
    job.checkpoint()
    cluster.run("scontrol", "requeuehold", str(job.number))
    wait_for("the end of its first run", lambda: job.status()["attempts"][0]["outcome"] == "requeued")
    shutil.rmtree(place(cluster, job))
    cluster.run("scontrol", "release", str(job.number))
    said = job.wait_output("^slurmckpt: cold start: (.*)$")[1]
    inside = f"/store/{place(cluster, job).parent.parent.name}/alice/{job.number}"
    assert said == (
        f"nothing of the job's earlier runs is in the store: {inside} was removed, is not shared by all nodes, or they "
        "never began, or ran without checkpoints"
    )
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    assert job.output().splitlines()[1:] == chain(60)
    assert (directory / "runs").read_text() == "run\nrun\n"
