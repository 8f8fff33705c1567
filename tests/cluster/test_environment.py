"""What a restored program finds out about where it is: what it knew stays true of its job, and new steps know more."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.harness import Cluster, move, restored_from

SCRIPT = """
show() { echo $1 $(hostname) $(python3 -c 'import socket; print(socket.gethostname())') $SLURMD_NODENAME $SLURM_JOB_NODELIST; }
show before
until [ -e go ]; do sleep 0.1; done
show after
srun sh -c 'echo step $(hostname) $SLURMD_NODENAME $SLURM_JOB_NODELIST $SLURM_RESTART_COUNT'
"""


def test_names_and_variables_of_the_old_node_and_of_the_new(cluster: Cluster, directory: Path) -> None:
    """The script goes on with what it had. Its srun starts a step with the new allocation's variables, where it is."""
    job = cluster.submit(SCRIPT, "--checkpoint-interval=infinite", "--time=5", directory=directory)
    job.wait_output("^before ")
    job.checkpoint()
    before = job.node()
    move(job, before)
    restored_from(job)
    after = job.node()
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    assert job.output().splitlines() == [
        f"before {before} {before} {before} {before}",
        f"after {before} {before} {before} {before}",
        f"step {before} {after} {after} 1",
    ]
