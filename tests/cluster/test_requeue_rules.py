"""Slurm's rules for requeues, one case each; docs/requeue.md has the table of all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Job, chain, wait_for
from tests.cluster.slurmconf import PREEMPTION, slurm_conf

INFINITE = "--checkpoint-interval=infinite"


def said(job: Job) -> list[str]:
    """Our own lines in the job's output."""
    return [line for line in job.output().splitlines() if line.startswith("slurmckpt: ")]


def program_lines(job: Job) -> list[str]:
    """All other lines."""
    return [line for line in job.output().splitlines() if not line.startswith("slurmckpt: ")]


class TestPreemption:
    """A job with a grace time of 60 s."""

    @pytest.fixture(scope="class", autouse=True)
    def preemption(self, running_cluster: Cluster) -> Iterator[None]:
        with slurm_conf(running_cluster, PREEMPTION.format(mode="REQUEUE", grace=60)):
            yield

    @staticmethod
    def preempt(cluster: Cluster, directory: Path, job: Job) -> Job:
        """Have another job ask for the nodes; wait until the grace time has begun."""
        other = cluster.submit("true", "-p", "high", "-N2", "-n8", name="other", directory=directory)
        wait_for("the preemption", lambda: job.info()["preempt_time"]["number"] > 0, 30)
        return other

    @pytest.mark.parametrize("status", [0, 3])
    def test_a_job_that_ends_by_itself_in_its_grace_time_ends_once(
        self, cluster: Cluster, directory: Path, status: int
    ) -> None:
        """Slurm requeues it all the same; it does nothing again, its output is whole, and its dependents see its end."""
        script = (
            f"echo run >>runs; python3 chain.py 40 0.1; until [ -e go ]; do sleep 0.1; done; echo end; exit {status}"
        )
        job = cluster.submit(script, INFINITE, "-p", "low", directory=directory)
        kind = "afterok" if status == 0 else "afternotok"
        after = cluster.submit(
            "cat job-*.out | wc -l", f"--dependency={kind}:{job.number}", name="after", directory=directory
        )
        job.wait_output("^10 ")
        job.checkpoint()
        self.preempt(cluster, directory, job)
        (directory / "go").touch()
        assert job.wait_end() == ("COMPLETED" if status == 0 else "FAILED"), job.output()
        assert job.info()["restart_cnt"] == 1
        assert job.info()["exit_code"]["return_code"]["number"] == status
        assert (directory / "runs").read_text() == "run\n"
        assert program_lines(job) == [*chain(40), "end"]
        (line,) = said(job)
        assert line.startswith(
            f"slurmckpt: the script had ended by itself with status {status} when the job was preempted"
        )
        assert after.wait_end() == "COMPLETED"
        assert after.output() == "42\n"
