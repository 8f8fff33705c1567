"""What Slurm does to a job: time limits, preemption, nodes that fail. The job goes on from its last checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Job, chain, drained, events, restored_from, settings, wait_for
from tests.cluster.slurmconf import PREEMPTION, STEP_TERMINATED, slurm_conf

MANUAL = "--checkpoint-interval=infinite"
PARTITIONS = PREEMPTION.format(mode="REQUEUE", grace=30)


def wait_restarted(job: Job, count: int, timeout: float = 150) -> None:
    """Wait until Slurm has started the job again so many times."""
    wait_for(
        lambda: f"restart {count} of job {job.number}: {events(job)}",
        lambda: job.info()["restart_cnt"] >= count and job.state() == "RUNNING",
        timeout,
    )


@pytest.mark.long
def test_time_limits(cluster: Cluster, directory: Path) -> None:
    """Five jobs at once, as each takes minutes: Slurm counts time limits in them."""

    def submit(name: str, script: str, *options: str) -> Job:
        return cluster.submit(script, MANUAL, "--time=1", *options, name=name, directory=directory)

    with slurm_conf(cluster, "MaxBatchRequeue=2"), settings(cluster, '[recover]\nmargin = "25s"'):
        plain = submit("plain", "exec python3 chain.py 450 0.1")
        step = submit("step", "srun -n1 python3 chain.py 450 0.1")
        endless = submit("endless", "exec python3 chain.py 3000 0.1")
        moved = submit("moved", "exec python3 chain.py 451 0.1")
        left = submit("left", "exec python3 chain.py 3000 0.1", "--checkpoint-recover=nodefail")
        moved.wait_output("^100 ")
        cluster.root("ctl", f"scontrol update JobId={moved.number} TimeLimit=30")
        for job in (plain, step):
            assert job.wait_end() == "COMPLETED", job.output()
            assert job.output().splitlines() == chain(450)
            assert [attempt["restored_from"] for attempt in job.status()["attempts"]] == [None, 1]
            # proctrack/linuxproc signals every process, and the end of one that has died of it may be noted as well.
            requeued, *ended = events(job)
            assert requeued == "requeued before its time limit, to go on from #1"
            assert all("died of SIGTERM: not recovered, as the job is COMPLETING+PENDING" in text for text in ended)
        assert moved.wait_end() == "COMPLETED"
        assert moved.output().splitlines() == chain(451)
        assert moved.info()["restart_cnt"] == 0
        # It does not name the event: so it is left to its limit.
        assert left.wait_end() == "TIMEOUT"
        assert left.info()["restart_cnt"] == 0
        assert endless.wait_end(240) == "TIMEOUT"
    assert [attempt["restored_from"] for attempt in endless.status()["attempts"]] == [None, 1, 2]
    assert re.findall("^slurmckpt: .*$", endless.output(), re.MULTILINE) == [
        "slurmckpt: the time limit (1m 00s) will end this job for good: it has been requeued 2 times, and"
        " MaxBatchRequeue=2 allows no more"
    ]
    # The last checkpoint of the last run is there, for whoever requeues it by hand.
    assert [each["epoch"] for each in endless.status()["checkpoints"]] == [1, 2, 3]


def test_a_job_that_may_not_be_requeued_is_told_at_once(cluster: Cluster, directory: Path) -> None:
    options = (MANUAL, "--time=5", "--no-requeue")
    job = cluster.submit("exec python3 chain.py 600 0.1", *options, directory=directory, held=True)
    job.wait_output(r"^slurmckpt: Slurm will not requeue this job \(--no-requeue, or JobRequeue=0\)")
    wait_for("the limit in its record", lambda: events(job))
    assert events(job) == [
        "the time limit (5m 00s) will end this job for good: it may not be requeued (--no-requeue, or JobRequeue=0 in"
        " slurm.conf)"
    ]
    assert job.output().count("slurmckpt: ") == 1


def preempt(cluster: Cluster, directory: Path, job: Job) -> Job:
    """Let a job of higher priority take the whole node of a running one."""
    return cluster.submit(
        "sleep 3", "--partition=high", "--exclusive", f"--nodelist={job.node()}", name="high", directory=directory
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "script", ["exec python3 chain.py 600 0.1", "srun -n2 --label python3 chain.py 600 0.1"], ids=["batch", "srun"]
)
def test_a_preempted_job_takes_a_last_checkpoint(cluster: Cluster, directory: Path, script: str) -> None:
    """A batch script gets no signal from Slurm, ranks of a step die of it."""
    with slurm_conf(cluster, PARTITIONS):
        job = cluster.submit(script, MANUAL, "--partition=low", "--ntasks=2", "--exclusive", directory=directory)
        job.wait_output("10 ")
        high = preempt(cluster, directory, job)
        wait_for("the last checkpoint", lambda: job.status()["checkpoints"] and events(job), 60)
        assert events(job)[0] == "preempted; the last checkpoint is #1"
        assert high.wait_end() == "COMPLETED"
        wait_restarted(job, 1)
        assert restored_from(job) == 1
        assert job.wait_end() == "COMPLETED", job.output()
    expected = [f"{rank}: {line}" for rank in (0, 1) for line in chain(600)] if "srun" in script else chain(600)
    lines = [line for line in job.output().splitlines() if not STEP_TERMINATED.search(line)]
    outcomes = [attempt["outcome"] for attempt in job.status()["attempts"]]
    if "requeued" in outcomes:
        # Slurm 24.11 takes the end after a preemption for another one; the next attempt ends at once.
        outcomes.remove("requeued")
        (again,) = [line for line in lines if "slurmckpt: the script had ended by itself with status 0" in line]
        lines.remove(again)
    assert sorted(lines) == sorted(expected)
    assert outcomes == ["preempted", "COMPLETED"]


@pytest.mark.long
def test_a_preempted_rank_gets_its_signal_once(cluster: Cluster, directory: Path) -> None:
    """After the last checkpoint, so that a restored rank is as it was before; and no later than Slurm wants it."""
    script = """srun -n2 bash -c 'trap "date +%s >>hits.\\$SLURM_PROCID" TERM
echo ready; for ((i = 0; i < 400; i++)); do sleep 0.1; done; echo done'"""
    with slurm_conf(cluster, PARTITIONS):
        job = cluster.submit(script, MANUAL, "--partition=low", "--ntasks=2", "--exclusive", directory=directory)
        job.wait_output("ready\nready")
        high = preempt(cluster, directory, job)
        hits = [directory / f"hits.{rank}" for rank in (0, 1)]
        wait_for("the signal", lambda: all(hit.exists() for hit in hits))
        assert events(job) == ["preempted; the last checkpoint is #1"]
        # By this the signal is held for as long as it takes.
        info = job.info()
        assert 0 < info["end_time"]["number"] - info["preempt_time"]["number"] <= 30
        assert high.wait_end() == "COMPLETED"
        wait_restarted(job, 1)
        assert restored_from(job) == 1
        assert job.wait_end() == "COMPLETED", job.output()
    for hit in hits:
        first, *later = map(int, hit.read_text().split())
        # At the end of the grace time Slurm sends it once more, as it always does before it kills.
        assert all(each >= first + 20 for each in later), hit.read_text()
    assert re.findall("^(?:ready|done)$", job.output(), re.MULTILINE) == ["ready", "ready", "done", "done"]


def test_a_signal_that_is_no_preemption_is_not_kept(cluster: Cluster, directory: Path) -> None:
    """Also when Slurm's controller does not answer."""
    script = """srun -n1 bash -c 'trap "echo caught; exit 0" TERM; echo ready; while :; do sleep 0.1; done'"""
    with slurm_conf(cluster, PARTITIONS):
        job = cluster.submit(script, MANUAL, "--partition=low", directory=directory)
        job.wait_output("^ready")
        cluster.run("scancel", "--signal=TERM", f"{job.number}.0")
        job.wait_output("^caught", 20)  # held, it would come after 30 s
        assert job.wait_end() == "COMPLETED", job.output()
    assert job.status()["checkpoints"] == []


@pytest.mark.long
def test_without_preempt_in_the_list(cluster: Cluster, directory: Path) -> None:
    """No last checkpoint, and nothing is restored after the requeue."""
    with slurm_conf(cluster, PARTITIONS):
        job = cluster.submit(
            "srun -n1 python3 chain.py 300 0.1",
            MANUAL,
            "--checkpoint-recover=nodefail",
            "--partition=low",
            "--exclusive",
            directory=directory,
        )
        job.wait_output("^10 ")
        job.checkpoint()
        high = preempt(cluster, directory, job)
        assert high.wait_end() == "COMPLETED"
        wait_restarted(job, 1)
        assert job.wait_end() == "COMPLETED", job.output()
    why = "it was preempted, and preempt is not among the events that this job recovers from (nodefail)"
    assert job.output().splitlines() == [f"slurmckpt: cold start: {why}", *chain(300)]


def down(cluster: Cluster, node: str) -> None:
    cluster.root("ctl", f"scontrol update nodename={node} state=DOWN reason=test")


def up(cluster: Cluster, node: str) -> None:
    # Where ReturnToService lets it, the node has come back by itself.
    cluster.root("ctl", f"scontrol update nodename={node} state=RESUME", check=False)


@pytest.mark.long
@pytest.mark.parametrize("how", ["down", "reboot", "power"])
def test_a_node_that_fails(cluster: Cluster, directory: Path, how: str) -> None:
    job = cluster.submit("exec python3 chain.py 300 0.1", MANUAL, directory=directory)
    job.wait_output("^10 ")
    seq = job.checkpoint()
    node = job.node()
    try:
        if how == "down":
            down(cluster, node)
        else:
            cluster.verb("fail", node)
            if how == "reboot":
                cluster.verb("start", node)
        assert restored_from(job) == seq
        assert job.wait_end() == "COMPLETED", job.output()
    finally:
        if how == "down":
            up(cluster, node)
        elif how == "power":
            cluster.verb("start", node)
    assert job.output().splitlines() == chain(300)


@pytest.mark.long
def test_without_nodefail_in_the_list(cluster: Cluster, directory: Path) -> None:
    """A requeue by hand is restored all the same: somebody wants it."""
    job = cluster.submit("exec python3 chain.py 300 0.1", MANUAL, "--checkpoint-recover=timelimit", directory=directory)
    job.wait_output("^10 ")
    seq = job.checkpoint()
    node = job.node()
    with drained(cluster, [node]):
        job.requeue()
        wait_restarted(job, 1)
        assert restored_from(job) == seq
    node = job.node()
    cluster.verb("fail", node)
    try:
        wait_restarted(job, 2)
        assert job.wait_end() == "COMPLETED", job.output()
    finally:
        cluster.verb("start", node)
    why = (
        "the node of the last incarnation was lost, and nodefail is not among the events that this job recovers from"
        " (timelimit)"
    )
    assert job.output().splitlines() == [f"slurmckpt: cold start: {why}", *chain(300)]
