"""What doctor says of Slurm's rules for requeues."""

from __future__ import annotations

import pytest

from slurmckpt.doctor import requeue
from slurmckpt.doctor.checks import Check
from slurmckpt.doctor.finding import Finding
from slurmckpt.doctor.host import Cluster
from slurmckpt.slurm.port import PartitionInfo
from tests.unit.doctor.world import NODE, World

BY_PARTITION = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE", "KillWait": "30 sec"}


def look(world: World, check: Check, *partitions: PartitionInfo, **config: str) -> Finding:
    return check(world.host(cluster=Cluster(world.config | config, NODE, partitions=partitions)))


def test_a_partition_that_cancels_what_it_preempts(world: World) -> None:
    low, high = PartitionInfo("low", "CANCEL", 0), PartitionInfo("high", "OFF", 0)
    found = look(world, requeue.preempt_mode, low, high, **BY_PARTITION)
    assert (found.verdict, found.text) == (
        "warning",
        "REQUEUE, but CANCEL in low: jobs preempted there do not come back",
    )
    assert look(world, requeue.preempt_mode, high, **BY_PARTITION).verdict == "ok"
    # Without preemption it is only a word.
    assert look(world, requeue.preempt_mode, low, high, PreemptMode="OFF").text == "OFF: no job is preempted"


@pytest.mark.parametrize(
    ("partitions", "verdict", "text"),
    [
        ([("low", "REQUEUE", 60), ("high", "OFF", 0)], "ok", "low 60 s: from SIGTERM to the end of a preempted job, "),
        ([("low", "", 0)], "ok", "low 0 s: a preempted job is ended at once (SIGTERM, SIGKILL 30 s later), "),
        ([("low", "SUSPEND", 60)], "skipped", "no partition's jobs are preempted and requeued"),
        ([], "skipped", "no partition's jobs are preempted and requeued"),
    ],
)
def test_the_grace_time_is_said(world: World, partitions: list[tuple[str, str, int]], verdict: str, text: str) -> None:
    found = look(world, requeue.grace_time, *(PartitionInfo(*each) for each in partitions), **BY_PARTITION)
    assert found.verdict == verdict
    assert found.text.startswith(text)


def test_no_grace_time_without_preemption(world: World) -> None:
    assert look(world, requeue.grace_time, PartitionInfo("low", "REQUEUE", 60)).verdict == "skipped"


@pytest.mark.parametrize(
    ("check", "config", "verdict", "text"),
    [
        (requeue.max_batch_requeue, {"MaxBatchRequeue": "5"}, "ok", "5: so often a job goes on beyond its time limit"),
        (requeue.max_batch_requeue, {"MaxBatchRequeue": "0"}, "warning", "0: a job is held after its first failed "),
        (requeue.max_batch_requeue, {}, "ok", "not set: "),
        (requeue.job_file_append, {"JobFileAppend": "0"}, "ok", "0: Slurm truncates a requeued job's output; "),
        (requeue.job_file_append, {"JobFileAppend": "1"}, "ok", "1: Slurm keeps a requeued job's output; "),
        (requeue.requeue_exit, {}, "ok", "not set"),
        (requeue.requeue_exit, {"RequeueExit": "99"}, "ok", "RequeueExit=99: such a job goes on once from its last "),
    ],
)
def test_what_is_said_of_the_site(world: World, check: Check, config: dict[str, str], verdict: str, text: str) -> None:
    found = look(world, check, **config)
    assert found.verdict == verdict
    assert found.text.startswith(text)
