"""Slurm's rules for requeues, one case each; docs/requeue.md has the table of all."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import GATE, Cluster, Job, chain, drained, finish, restored_from, wait_for
from tests.cluster.slurmconf import PREEMPTION, slurm_conf

INFINITE = "--checkpoint-interval=infinite"
CHAIN = f"python3 chain.py 50 0.1; {GATE}"


def said(job: Job) -> list[str]:
    """Our own lines in the job's output."""
    return [line.removeprefix("slurmckpt: ") for line in job.output().splitlines() if line.startswith("slurmckpt: ")]


def program_lines(job: Job) -> list[str]:
    """All other lines."""
    return [line for line in job.output().splitlines() if not line.startswith("slurmckpt: ")]


def images(cluster: Cluster, job: Job) -> list[str]:
    """The committed checkpoints of a job in the store."""
    found = cluster.home.parent.parent.glob(f"store/*/alice/{job.number}/*")
    return sorted(path.name for path in found if path.is_dir())


def wait_attempt(job: Job, count: int) -> None:
    """Wait until so many incarnations have begun."""
    wait_for(f"attempt {count}", lambda: len(job.status()["attempts"]) == count)


def wait_outcome(job: Job, outcome: str) -> None:
    """Wait until the coordinator of its last incarnation has written down how it ended."""
    wait_for("the end in the record", lambda: job.status()["attempts"][-1]["outcome"] == outcome)


def held(job: Job) -> str:
    """The reason for which Slurm holds a job, once it does."""

    def reason() -> str | None:
        info = job.info()
        return str(info["state_reason"]) if info["job_state"][0] == "PENDING" and info["hold"] else None

    return wait_for(f"job {job.number} to be held", reason)


# --- jobs that have ended and are requeued by hand


def test_a_completed_job_that_is_requeued_runs_again_and_is_told_why(cluster: Cluster, directory: Path) -> None:
    """Its owner wants it to run. Its checkpoints were removed when it had completed."""
    job = cluster.submit(f"echo run >>runs; {CHAIN}", INFINITE, directory=directory)
    job.wait_output("^10 ")
    job.checkpoint()
    assert finish(job) == "COMPLETED", job.output()
    wait_for("the images to go", lambda: not images(cluster, job))
    job.requeue()
    wait_attempt(job, 2)
    assert job.wait_end() == "COMPLETED", job.output()
    assert said(job) == ["cold start: its checkpoints were removed when it had ended (COMPLETED)"]
    assert program_lines(job) == chain(50)
    assert (directory / "runs").read_text() == "run\nrun\n"


def test_a_failed_job_that_is_requeued_goes_on_from_its_last_checkpoint(cluster: Cluster, directory: Path) -> None:
    """What made it fail may have been mended."""
    script = f"echo run >>runs; {CHAIN}; [ -e mended ] || exit 7; echo end"
    job = cluster.submit(script, INFINITE, directory=directory)
    job.wait_output("^10 ")
    seq = job.checkpoint()
    assert finish(job) == "FAILED", job.output()
    assert images(cluster, job) == [str(seq)]
    (directory / "mended").touch()
    job.requeue()
    wait_attempt(job, 2)
    assert restored_from(job) == seq
    assert job.wait_end() == "COMPLETED", job.output()
    assert job.output().splitlines() == [*chain(50), "end"]
    assert (directory / "runs").read_text() == "run\n"


@pytest.fixture
def pruned(cluster: Cluster) -> None:
    """Nothing is left of other tests' jobs that prune would remove."""
    cluster.run("slurmckpt", "prune", "--quiet", user="root", node="n1")


@pytest.mark.usefixtures("pruned")
def test_requeuehold_and_release(cluster: Cluster, directory: Path) -> None:
    """However long it is held, it goes on from where it was."""
    job = cluster.submit(CHAIN, INFINITE, directory=directory)
    job.wait_output("^20 ")
    seq = job.checkpoint()
    cluster.run("scontrol", "requeuehold", str(job.number))
    held(job)
    done = cluster.run("slurmckpt", "prune")
    assert done.stdout.startswith("nothing to remove: ") and images(cluster, job) == [str(seq)]
    cluster.run("scontrol", "release", str(job.number))
    wait_attempt(job, 2)
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    assert job.output().splitlines() == chain(50)


# --- what is left in the store


@pytest.mark.usefixtures("pruned")
def test_prune_removes_what_a_job_left_that_was_cancelled_while_it_waited(cluster: Cluster, directory: Path) -> None:
    """No node runs it any more, so nobody else does. As the user, and as root for everybody."""
    jobs = [cluster.submit(CHAIN, INFINITE, name=name, directory=directory) for name in ("one", "two")]
    for job in jobs:
        job.wait_output("^5 ")
        job.checkpoint()
        cluster.run("scontrol", "requeuehold", str(job.number))
    for job in jobs:
        held(job)
        # Its coordinator would remove them itself, if Slurm said CANCELLED before it has looked.
        wait_outcome(job, "requeued")
        job.cancel()
        assert job.wait_end().split()[0] == "CANCELLED"
        assert images(cluster, job) == ["1"]
    mine, other = jobs
    lines = [f"job {job.number} of alice: 1 checkpoint would be removed: it has ended (CANCELLED)" for job in jobs]
    assert cluster.run("slurmckpt", "prune", "--dry-run").stdout.splitlines() == lines
    assert cluster.run("slurmckpt", "prune", "--dry-run", user="bob").stdout.startswith("nothing to remove: no job")
    assert images(cluster, mine) == ["1"]
    cluster.run("slurmckpt", "prune", "--quiet")
    assert images(cluster, mine) == images(cluster, other) == []


@pytest.mark.usefixtures("pruned")
@pytest.mark.parametrize("known", [True, False], ids=["known", "forgotten"])
def test_prune_removes_failed_jobs_images_after_some_days(cluster: Cluster, directory: Path, known: bool) -> None:
    """As root, with the rights of the owner, whose directory is closed to others."""
    job = cluster.submit(f"{CHAIN}; exit 7", INFINITE, directory=directory)
    job.wait_output("^5 ")
    job.checkpoint()
    assert finish(job) == "FAILED", job.output()
    wait_outcome(job, "FAILED")
    (place,) = cluster.home.parent.parent.glob(f"store/*/alice/{job.number}")
    why = "it has ended (FAILED), 8 days ago"
    if not known:
        # As long ago as Slurm forgets jobs (MinJobAge); its numbers are not that high here.
        place = place.rename(place.with_name(str(60_000_000 + job.number)))
        why = "Slurm does not know it, and nothing changed for 8 days"
    assert cluster.run("slurmckpt", "prune", user="root").stdout.startswith("nothing to remove: ")
    then = time.time() - 8.1 * 86400
    os.utime(place, (then, then))
    done = cluster.run("slurmckpt", "prune", user="root", node="n1")
    assert done.stdout == f"job {place.name} of alice: 1 checkpoint removed: {why}\n"
    assert not [path for path in place.iterdir() if path.is_dir()]
    if not known:
        shutil.rmtree(place)
    else:
        job.requeue()
        job.wait_output("^slurmckpt: cold start: its checkpoints were removed by slurmckpt prune: it has ended")
        job.cancel()


# --- dependencies


def test_dependents_of_a_restored_job_run_once_after_its_end(cluster: Cluster, directory: Path) -> None:
    """afterok and afterany wait for the last incarnation."""
    job = cluster.submit(CHAIN, INFINITE, directory=directory)
    dependents = [
        cluster.submit(
            "echo run >>ran; cat job-*.out | wc -l", f"--dependency={kind}:{job.number}", name=kind, directory=directory
        )
        for kind in ("afterok", "afterany")
    ]
    never = cluster.submit("echo run >>ran", f"--dependency=afternotok:{job.number}", name="never", directory=directory)
    job.wait_output("^20 ")
    seq = job.checkpoint()
    job.requeue()
    wait_attempt(job, 2)
    assert restored_from(job) == seq
    assert not (directory / "ran").exists()
    assert finish(job) == "COMPLETED", job.output()
    for dependent in dependents:
        assert dependent.wait_end() == "COMPLETED"
        assert dependent.output() == "50\n"
    assert (directory / "ran").read_text() == "run\nrun\n"
    assert never.state() == "PENDING"
    never.cancel()


# --- jobs that Slurm does not requeue


def test_no_requeue(cluster: Cluster, directory: Path) -> None:
    """Said by sbatch where it can know, and in the job's output once; Slurm refuses to requeue it."""
    command = ["sbatch", "--parsable", f"--chdir=/home/alice/{directory.name}", INFINITE, "--no-requeue"]
    done = cluster.run(*command, "--wrap", "sleep 60")
    assert "slurmckpt: Slurm will not requeue this job (--no-requeue)" in done.stderr
    cluster.run("scancel", done.stdout.strip())
    job = cluster.submit(f"#!/bin/bash\n#SBATCH --no-requeue\n{CHAIN}", INFINITE, directory=directory)
    job.wait_output("^5 ")
    job.checkpoint()
    job.wait_output("^slurmckpt: ")
    (line,) = said(job)
    assert line.startswith("Slurm will not requeue this job (--no-requeue, or JobRequeue=0): its checkpoints will not")
    refused = cluster.run("scontrol", "requeue", str(job.number), check=False)
    assert refused.returncode != 0 and "disabled" in refused.stderr
    node = job.node()
    cluster.verb("fail", node)
    try:
        assert job.wait_end() == "NODE_FAIL"
    finally:
        cluster.verb("start", node)
    assert job.info()["restart_cnt"] == 0
    assert images(cluster, job) == ["1"]


def test_a_site_that_requeues_nothing_by_itself(cluster: Cluster, directory: Path) -> None:
    """JobRequeue=0: a job that says --requeue is as ever, every other one is told."""
    with slurm_conf(cluster, "JobRequeue=0\n"):
        plain = cluster.submit("true", INFINITE, name="plain", directory=directory)
        asked = cluster.submit("true", INFINITE, "--requeue", name="asked", directory=directory)
        assert plain.wait_end() == asked.wait_end() == "COMPLETED"
        assert [line.split("(")[0] for line in said(plain)] == ["Slurm will not requeue this job "]
        assert said(asked) == []


def test_preempt_mode_cancel(cluster: Cluster, directory: Path) -> None:
    """A job is told that no preemption will bring it back; Slurm ends it as PREEMPTED, and its images wait for prune."""
    with slurm_conf(cluster, PREEMPTION.format(mode="CANCEL", grace=0)):
        job = cluster.submit(CHAIN, INFINITE, "-p", "low", "--requeue", directory=directory)
        job.wait_output("^5 ")
        job.checkpoint()
        job.wait_output("^slurmckpt: ")
        (line,) = said(job)
        assert line.startswith("a preempted job is cancelled here (PreemptMode=CANCEL)")
        other = cluster.submit("true", INFINITE, "-p", "high", "-N2", "-n8", name="other", directory=directory)
        assert job.wait_end() == "PREEMPTED"
        assert other.wait_end() == "COMPLETED"
        assert job.info()["restart_cnt"] == 0
        assert images(cluster, job) == ["1"]


# --- how Slurm requeues


@pytest.mark.parametrize("mode", ["", "--open-mode=truncate"])
def test_job_file_append(cluster: Cluster, directory: Path, mode: str) -> None:
    """JobFileAppend=1 keeps what was written after the checkpoint; each line is there once all the same."""
    with slurm_conf(cluster, "JobFileAppend=1\n"):
        job = cluster.submit(f"echo preamble; {CHAIN}; echo end", INFINITE, *filter(None, [mode]), directory=directory)
        job.wait_output("^20 ")
        seq = job.checkpoint()
        job.wait_output("^40 ")
        job.requeue()
        wait_attempt(job, 2)
        assert restored_from(job) == seq
        assert finish(job) == "COMPLETED", job.output()
        assert job.output().splitlines() == ["preamble", *chain(50), "end"]


def test_requeue_exit(cluster: Cluster, directory: Path) -> None:
    """A script that asks by its exit status to be run again: once from its checkpoint, which ends it in the same way,
    and then from its top.
    """
    script = f"echo run >>runs; {CHAIN}; [ $(wc -l <runs) = 2 ] || exit 99; echo end"
    with slurm_conf(cluster, "RequeueExit=99\n"):
        job = cluster.submit(script, INFINITE, directory=directory)
        job.wait_output("^10 ")
        job.checkpoint()
        (directory / "go").touch()
        # On its way it has ended, for a moment, in the eyes of Slurm.
        wait_attempt(job, 3)
        assert job.wait_end() == "COMPLETED", job.output()
        assert [attempt["restored_from"] for attempt in job.status()["attempts"]] == [None, 1, None]
        assert said(job) == [
            "cold start: its checkpoints were removed when the script, restored from #1, had ended by itself with "
            "status 99"
        ]
        assert program_lines(job) == [*chain(50), "end"]


@pytest.mark.skipif(os.environ.get("SLURMCKPT_SUITE") == "trixie", reason="--requeue=expedite came with Slurm 25.11")
class TestExpedite:
    """--requeue=expedite: a job that fails is held, unless an epilog failed, too; one that lost its node starts at once."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def expedite(cls, running_cluster: Cluster) -> Iterator[None]:
        with slurm_conf(running_cluster, "SlurmctldParameters=enable_expedited_requeue\n"):
            yield

    def test_a_job_that_fails_is_held_and_goes_on_when_released(self, cluster: Cluster, directory: Path) -> None:
        script = f"{CHAIN}; [ -e mended ] || exit 7; echo end"
        job = cluster.submit(script, INFINITE, "--requeue=expedite", directory=directory)
        job.wait_output("^10 ")
        seq = job.checkpoint()
        (directory / "go").touch()
        held(job)
        assert images(cluster, job) == [str(seq)]
        (directory / "mended").touch()
        cluster.run("scontrol", "release", str(job.number))
        wait_attempt(job, 2)
        assert restored_from(job) == seq
        assert job.wait_end() == "COMPLETED", job.output()
        assert job.output().splitlines() == [*chain(50), "end"]

    def test_a_job_that_lost_its_node(self, cluster: Cluster, directory: Path) -> None:
        job = cluster.submit(CHAIN, INFINITE, "--requeue=expedite", directory=directory)
        job.wait_output("^20 ")
        seq = job.checkpoint()
        node = job.node()
        cluster.verb("fail", node)
        try:
            wait_attempt(job, 2)
            assert restored_from(job) == seq
            assert job.node() != node
            assert finish(job) == "COMPLETED", job.output()
        finally:
            cluster.verb("start", node)
        assert job.output().splitlines() == chain(50)


def test_requeued_on_the_same_node_at_once(cluster: Cluster, directory: Path) -> None:
    """The old coordinator may still be settling there."""
    with drained(cluster, ["n2"]):
        job = cluster.submit(CHAIN, INFINITE, directory=directory)
        job.wait_output("^20 ")
        for count in (2, 3):
            seq = job.checkpoint()
            job.requeue()
            wait_attempt(job, count)
            assert restored_from(job) == seq
        assert finish(job) == "COMPLETED", job.output()
    assert job.output().splitlines() == chain(50)
