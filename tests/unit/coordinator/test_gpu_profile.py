"""Which environment GPU ranks get, and why."""

from __future__ import annotations

import asyncio

import pytest

from slurmckpt.config import Settings
from slurmckpt.coordinator import gpu_launch
from slurmckpt.coordinator import payload as payloads
from slurmckpt.coordinator.gpu_profile import ENVIRONMENT, Node, Profile, apply, choose, indices
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.task import Task
from slurmckpt.store.manifest import GpuImage
from tests.unit.coordinator.parts import channels, hello, task

TWO = [b"PATH=/bin", b"SLURM_JOB_GPUS=0,1"]
IN_JOB = [*TWO, b"CUDA_CHECKPOINT_JOB_FILE=/run/x"]
H200 = Node("580.95.05", 8)


@pytest.mark.parametrize(
    ("wanted", "node", "environment", "tasks", "name", "reason"),
    [
        ("auto", Node("", 0), TWO, 2, "none", ""),
        ("auto", H200, [*TWO, b"CUDA_VISIBLE_DEVICES="], 2, "none", ""),
        ("auto", H200, [b"SLURM_JOB_GPUS=3"], 1, "none", "driver 580.95.05, 1 GPU: a single rank needs none"),
        # torchrun: one task, and a rank for each GPU.
        ("auto", H200, TWO, 1, "sockets", "driver 580.95.05, 2 GPUs: only sockets between ranks can be captured"),
        ("auto", H200, [b"SLURM_JOB_GPUS=3"], 2, "sockets", "driver 580.95.05, 1 GPU: only sockets"),
        ("auto", H200, [], 1, "sockets", "8 GPUs"),
        ("auto", Node("560.35", 8), TWO, 2, "none", "CUDA state can be captured from driver 570 on"),
        ("auto", Node("610.1", 8), TWO, 2, "sockets", "only sockets between ranks can be captured"),
        # Nobody knows how it ends: auto does not choose it.
        ("auto", Node("610.1", 8), IN_JOB, 2, "sockets", "in a checkpoint job, which nobody has tried with slurmckpt"),
        ("auto", Node("610.1", 8), [*IN_JOB, b"SLURM_JOB_GPUS=3"], 1, "none", "a single rank needs none"),
        ("sockets", H200, [b"SLURM_JOB_GPUS=3"], 1, "sockets", "as configured"),
        ("none", H200, TWO, 2, "none", "as configured"),
        ("job", Node("610.1", 8), IN_JOB, 2, "job", "as configured, which nobody has tried with slurmckpt on a device"),
    ],
)
def test_the_choice(wanted: str, node: Node, environment: list[bytes], tasks: int, name: str, reason: str) -> None:
    profile = choose(wanted, node, environment, tasks)
    assert profile.name == name and reason in profile.reason and not profile.conflict


@pytest.mark.parametrize(
    ("node", "environment", "conflict"),
    [
        (H200, IN_JOB, "the GPU profile job needs driver 610"),
        (Node("610.1", 8), TWO, "the GPU profile job needs a step under `cuda-checkpoint --launch-job`"),
    ],
)
def test_a_job_profile_that_cannot_be(node: Node, environment: list[bytes], conflict: str) -> None:
    assert choose("job", node, environment, 2).conflict == conflict


def test_an_overridden_variable_is_named() -> None:
    profile = choose("auto", H200, [*TWO, b"NCCL_P2P_DISABLE=0"], 2)
    assert profile.conflict.startswith(
        "NCCL_P2P_DISABLE=0 in the job's environment contradicts the GPU profile sockets"
    )
    assert profile.environment == {}
    # The value that is needed anyway is no contradiction.
    assert not choose("auto", H200, [*TWO, b"NCCL_P2P_DISABLE=1"], 2).conflict


def test_what_a_task_gets() -> None:
    found = apply(Profile("sockets"), [b"PATH=/bin", b"NCCL_P2P_DISABLE=1"])
    assert found[:2] == [b"PATH=/bin", b"NCCL_P2P_DISABLE=1"]
    assert b"NCCL_NVLS_ENABLE=0" in found and found.count(b"NCCL_P2P_DISABLE=1") == 1
    assert len(found) == 1 + len(ENVIRONMENT["sockets"])


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ([b"SLURM_JOB_GPUS=0,3"], (0, 3)),
        ([b"SLURM_JOB_GPUS=0,3", b"SLURM_STEP_GPUS=3"], (3,)),
        ([b"SLURM_JOB_GPUS=2-4,7"], (2, 3, 4, 7)),
        ([b"SLURM_JOB_GPUS=0-9999"], ()),
        ([b"SLURM_JOB_GPUS=a"], ()),
        ([b"SLURM_JOB_GPUS=\xff"], ()),
        ([b"SLURM_JOB_GPUS"], ()),
        ([], ()),
    ],
)
def test_the_gpus_of_a_job(environment: list[bytes], expected: tuple[int, ...]) -> None:
    assert indices(environment) == expected


async def _task(environment: list[bytes]) -> Task:
    one = task(channels()[0])
    found = payloads.from_memfd(one.payload)
    one.payload = payloads.to_memfd(found.with_words(found.argv, environment))
    return one


def test_a_step_is_set_up_when_it_starts() -> None:
    async def work() -> None:
        one = await _task(TWO)
        step = Step.of(hello(), "0")
        line = gpu_launch.start(step, [one], Settings(), {"gpu.driver": "580.95.05", "gpu.count": "8"})
        assert line.startswith("GPU profile sockets: driver 580.95.05, 2 GPUs: ") and "NCCL_P2P_DISABLE=1" in line
        assert b"NCCL_P2P_DISABLE=1" in payloads.from_memfd(one.payload).environment
        assert step.gpu_indices == (0, 1)
        one.close()

        # Where Slurm manages no GPUs, a job may use them or not: it gets the environment, and no line.
        one = await _task([b"PATH=/bin"])
        assert gpu_launch.start(step, [one], Settings(), {"gpu.driver": "580.95.05", "gpu.count": "8"}) == ""
        assert b"NCCL_P2P_DISABLE=1" in payloads.from_memfd(one.payload).environment
        one.close()

        one = await _task(TWO)
        assert gpu_launch.start(step, [one], Settings(), {}) == ""
        assert payloads.from_memfd(one.payload).environment == TWO
        gpu_launch.come_back(step, [one], GpuImage([100], [], [], "sockets", "why"))
        assert step.profile == Profile("sockets", "why")
        one.close()

    asyncio.run(work())
