"""Training with many helpers: a checkpoint, a requeue, and the result is that of an undisturbed run."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.harness import Cluster, Job, move, restored_from

STEPS = 60
SRUN = """
export MASTER_ADDR=$(hostname) MASTER_PORT=$((21000 + SLURM_JOB_ID)) USE_LIBUV=0
srun -n2 python3 loader.py {steps} {seconds}
"""


def steps(job: Job) -> list[str]:
    return re.findall(r"^step .*$", job.output(), re.MULTILINE)


def undisturbed(cluster: Cluster, directory: Path) -> list[str]:
    """The losses of two ranks that nobody disturbs."""
    job = cluster.submit(
        SRUN.format(steps=STEPS, seconds=0), "--ntasks=2", "--mem=5000", name="alone", directory=directory
    )
    assert job.wait_end() == "COMPLETED", job.output()
    found = steps(job)
    assert len(found) == STEPS
    return found


def test_ddp_with_data_loader_workers(cluster: Cluster, directory: Path) -> None:
    """Each rank has two workers, which hand over their tensors in /dev/shm; pinned memory is asked for."""
    job = cluster.submit(
        SRUN.format(steps=STEPS, seconds=0.1),
        "--checkpoint-interval=infinite",
        "--ntasks=2",
        "--mem=5000",
        directory=directory,
    )
    job.wait_output("^step 10 ", 120)
    seq = job.checkpoint()
    job.wait_output("^step 20 ")
    move(job, job.node())
    assert restored_from(job) == seq
    assert job.wait_end() == "COMPLETED", job.output()
    assert steps(job) == undisturbed(cluster, directory)
