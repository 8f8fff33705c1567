"""What Slurm's rules for a job mean for its checkpoints."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from slurmckpt.coordinator import rules
from slurmckpt.coordinator.rules import Pointless, Rules, check, look
from slurmckpt.coordinator.spec import JobSpec, Options
from slurmckpt.errors import SlurmError
from slurmckpt.identity import JobIdentity
from slurmckpt.slurm.port import JobInfo, PartitionInfo

JOB = JobInfo(7, "7", frozenset({"RUNNING"}), 1000, "", "", ("n1",), 1, "debug", 0, "", True)
SPEC = JobSpec(JobIdentity("c", "jane", 1000, 1000, 7), "n1", 1, 0, Options())


class Slurm:
    def __init__(self, job: JobInfo, partition_mode: str = "", **settings: str) -> None:
        self.answer = job
        self.mode = partition_mode
        self.settings = settings

    async def job(self, job_id: int) -> JobInfo:
        assert job_id == 7
        return self.answer

    async def config(self) -> dict[str, str]:
        return self.settings

    async def partitions(self) -> list[PartitionInfo]:
        return [PartitionInfo("other", "SUSPEND", 0), PartitionInfo("debug", self.mode, 0)]


def remarks(slurm: object, spec: JobSpec = SPEC) -> tuple[str, ...]:
    return asyncio.run(look(cast(Any, slurm), spec)).remarks


def test_a_job_that_will_be_requeued_needs_no_remark() -> None:
    slurm = Slurm(JOB, "REQUEUE", PreemptType="preempt/partition_prio", PreemptMode="CANCEL")
    assert asyncio.run(look(cast(Any, slurm), SPEC)) == Rules(JOB)
    check(SPEC, Rules(JOB))
    assert remarks(Slurm(JOB, PreemptType="", PreemptMode="OFF")) == ()
    # Without preemption its mode is nothing.
    assert remarks(Slurm(JOB, "CANCEL", PreemptType="preempt/none", PreemptMode="CANCEL")) == ()


def test_a_job_that_will_not_be_requeued() -> None:
    assert remarks(Slurm(replace(JOB, requeue=False))) == (rules.NO_REQUEUE,)
    # Said once in its life: an administrator may have requeued it all the same.
    assert remarks(Slurm(replace(JOB, requeue=False)), replace(SPEC, restart_count=1)) == ()


@pytest.mark.parametrize(
    ("kind", "mode", "partition"),
    [
        ("preempt/partition_prio", "REQUEUE", "CANCEL"),
        ("preempt/partition_prio", "CANCEL", ""),
        ("preempt/partition_prio", "GANG,CANCEL", ""),
        ("preempt/qos", "CANCEL", "REQUEUE"),
    ],
)
def test_a_job_that_is_cancelled_when_it_is_preempted(kind: str, mode: str, partition: str) -> None:
    assert remarks(Slurm(JOB, partition, PreemptType=kind, PreemptMode=mode)) == (rules.CANCELLED_WHEN_PREEMPTED,)


def test_a_job_that_salloc_or_srun_made() -> None:
    found = asyncio.run(look(cast(Any, Slurm(replace(JOB, batch=False, requeue=False))), SPEC))
    assert found.remarks == ()
    with pytest.raises(Pointless, match="only batch jobs can be requeued and restored") as raised:
        check(SPEC, found)
    assert raised.value.quiet


@pytest.mark.parametrize(("het_id", "quiet"), [(7, False), (6, True)])
def test_a_heterogeneous_job_is_told_by_its_first_component(het_id: int, quiet: bool) -> None:
    with pytest.raises(Pointless, match="heterogeneous jobs are not supported yet") as raised:
        check(replace(SPEC, het_id=het_id), Rules())
    assert raised.value.quiet is quiet


class Failing:
    def __init__(self, error: Exception | None) -> None:
        self.error = error

    async def job(self, job_id: int) -> JobInfo:
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize(
    "slurm", [None, Failing(SlurmError("no")), Failing(KeyError("a fault of ours")), Failing(None)]
)
def test_without_an_answer_all_is_well(slurm: Failing | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_PATIENCE", 0.05)
    assert asyncio.run(look(cast(Any, slurm), SPEC)) == Rules()
    check(SPEC, Rules())


@pytest.mark.parametrize("leads", [True, False])
def test_a_job_on_several_nodes_is_told_by_its_first(leads: bool) -> None:
    found = rules.several_nodes(replace(SPEC, node_count=2, leads=leads))
    assert str(found) == "jobs on several nodes are not supported yet, and this one has 2"
    assert found.quiet is not leads
