"""Jobs that end in the grace time of their preemption: Slurm requeues them, finished or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Job, chain, finish, wait_for
from tests.cluster.slurmconf import PREEMPTION, STEP_TERMINATED, slurm_conf

INFINITE = "--checkpoint-interval=infinite"


@pytest.fixture(scope="module", autouse=True)
def preemption(running_cluster: Cluster) -> Iterator[None]:
    """The partitions `low` and `high`, with a grace time of 60 s."""
    with slurm_conf(running_cluster, PREEMPTION.format(mode="REQUEUE", grace=60)):
        yield


def preempt(cluster: Cluster, directory: Path, job: Job, restarts: int = 0) -> Job:
    """Have another job ask for the nodes; wait until the grace time of `job` has begun."""
    other = cluster.submit("true", "-p", "high", "-N2", "-n8", name="other", directory=directory)
    wait_for("the preemption", lambda: job.info()["preempt_time"]["number"] > 0 or job.info()["restart_cnt"] > restarts)
    return other


def said(job: Job) -> list[str]:
    """Our own lines in the job's output."""
    return [line.removeprefix("slurmckpt: ") for line in job.output().splitlines() if line.startswith("slurmckpt: ")]


def program_lines(job: Job) -> list[str]:
    """All other lines."""
    return [line for line in job.output().splitlines() if not line.startswith("slurmckpt: ")]


@pytest.mark.parametrize("step", [False, True], ids=["plain", "step"])
@pytest.mark.parametrize("status", [0, 3])
def test_a_job_that_had_finished_ends_at_once(cluster: Cluster, directory: Path, status: int, step: bool) -> None:
    """It does nothing again, its output is whole, and its dependents see its end, once. A step had ended before."""
    run = f"{'srun ' if step else ''}python3 chain.py 40 0.1"
    script = f"echo run >>runs; {run}; until [ -e go ]; do sleep 0.1; done; echo end; exit {status}"
    job = cluster.submit(script, INFINITE, "-p", "low", directory=directory)
    kind = "afterok" if status == 0 else "afternotok"
    after = cluster.submit("echo ran", f"--dependency={kind}:{job.number}", name="after", directory=directory)
    job.wait_output("^10 ")
    job.checkpoint()
    job.wait_output("^39 ")
    if step:
        wait_for("the step's end", lambda: "ended" in [each["state"] for each in job.status()["attempts"][0]["steps"]])
    preempt(cluster, directory, job)
    (directory / "go").touch()
    assert job.wait_end() == ("COMPLETED" if status == 0 else "FAILED"), job.output()
    assert job.info()["restart_cnt"] == 1
    assert job.info()["exit_code"]["return_code"]["number"] == status
    assert (directory / "runs").read_text() == "run\n"
    assert program_lines(job) == [*chain(40), "end"]
    (line,) = said(job)
    assert line.startswith(f"the script had ended by itself with status {status} when the job was preempted (#2): ")
    assert after.wait_end() == "COMPLETED"
    assert after.output() == "ran\n"


def test_a_job_that_had_finished_and_is_requeued_on_purpose_runs(cluster: Cluster, directory: Path) -> None:
    """The mark is used up."""
    script = "echo run >>runs; echo one; until [ -e go ]; do sleep 0.1; done; echo end"
    job = cluster.submit(script, INFINITE, "-p", "low", directory=directory)
    job.wait_output("^one")
    preempt(cluster, directory, job)
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    assert (directory / "runs").read_text() == "run\n"
    job.requeue()
    wait_for("attempt 3", lambda: len(job.status()["attempts"]) == 3)
    assert job.wait_end() == "COMPLETED", job.output()
    assert (directory / "runs").read_text() == "run\nrun\n"
    assert program_lines(job) == ["one", "end"]
    (line,) = said(job)
    assert line == "cold start: its checkpoints were removed when it had ended (COMPLETED)"


def test_max_batch_requeue_holds_it_and_it_ends_when_released(cluster: Cluster, directory: Path) -> None:
    """Such ends count for MaxBatchRequeue, as failed launches do, and other requeues do not."""
    with slurm_conf(cluster, PREEMPTION.format(mode="REQUEUE", grace=60) + "MaxBatchRequeue=1\n"):
        job = cluster.submit(
            "echo one; until [ -e go ]; do sleep 0.1; done", INFINITE, "-p", "low", directory=directory
        )
        job.wait_output("^one")
        job.requeue()
        wait_for("attempt 2", lambda: len(job.status()["attempts"]) == 2)
        job.wait_output("^one")
        preempt(cluster, directory, job, restarts=1)
        (directory / "go").touch()
        wait_for("Slurm to hold it", lambda: job.info()["state_reason"] == "JobHoldMaxRequeue")
        cluster.root("ctl", f"scontrol release {job.number}")
        assert job.wait_end() == "COMPLETED", job.output()
        assert job.info()["restart_cnt"] == 2
        assert program_lines(job) == ["one"]
        assert "the script had ended by itself with status 0 when the job was preempted" in said(job)[-1]


def test_a_job_whose_step_the_preemption_ended_has_not_finished(cluster: Cluster, directory: Path) -> None:
    """Its script comes to its end with status 0, but only because SIGTERM ended the step. Its work is not lost."""
    job = cluster.submit(
        "srun python3 chain.py 300 0.1; echo end", INFINITE, "-p", "low", directory=directory, held=True
    )
    job.wait_output("^20 ")
    job.checkpoint()
    other = preempt(cluster, directory, job)
    assert other.wait_end() == "COMPLETED"
    assert finish(job) == "COMPLETED", job.output()
    assert job.info()["restart_cnt"] == 1
    # Slurm's own line about the signal is there when the last checkpoint is taken in the grace time.
    lines = [line for line in program_lines(job) if not STEP_TERMINATED.search(line)]
    assert lines == [*chain(300), "end"]
    assert job.status()["attempts"][1]["restored_from"] is not None
