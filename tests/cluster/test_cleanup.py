"""A job leaves no process, namespace, mount or file behind, however it ends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Job, move, restored_from, wait_for

LEFTOVERS = r"""
find /run/slurmckpt /var/lib/slurmckpt -mindepth 1 2>/dev/null
grep -E 'slurmckpt-shm|/run/slurmckpt' /proc/mounts
for p in /proc/[0-9]*; do
    [ $p != /proc/$$ ] || continue
    tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -E '/slurmckpt/(shim|pod-init|leader|enter)|slurmckpt.hooks|criu swrk|slurmckpt-shim|chain.py|hog.py' |
        sed "s|^|$p |"
    for n in pid net ipc; do
        [ "$(readlink $p/ns/$n 2>/dev/null)" = "$(readlink /proc/1/ns/$n)" ] || { [ -e $p/ns/$n ] && echo "$p is in another $n namespace"; }
    done
done
exit 0
"""


def assert_clean(cluster: Cluster, *nodes: str, seconds: float = 60.0) -> None:
    """Nothing of a job is on these nodes, now or in a moment, which is `seconds` at most."""
    for node in nodes:
        left = ""

        def clean(node: str = node) -> bool:
            nonlocal left
            left = cluster.root(node, LEFTOVERS).stdout
            return left == ""

        try:
            wait_for("clean", clean, seconds)
        except AssertionError:
            raise AssertionError(f"left on {node}:\n{left}") from None


def images(cluster: Cluster, job: Job) -> list[Path]:
    """What the store holds of a job beside its record and lease."""
    found = cluster.home.parent.parent.glob(f"store/*/alice/{job.number}/*")
    return [path for path in found if path.is_dir()]


@pytest.mark.parametrize("kind", ["batch", "step"])
def test_scancel(cluster: Cluster, directory: Path, kind: str) -> None:
    """In the middle of checkpoints that are taken all the time."""
    run = "python3 chain.py 600 0.1 own.txt"
    script = run if kind == "batch" else f"srun {run}"
    job = cluster.submit(script, "--checkpoint-interval=1s", directory=directory, held=True)
    job.wait_checkpoints(2)
    node = job.node()
    job.cancel()
    assert job.wait_end().split()[0] == "CANCELLED"
    assert_clean(cluster, node)
    wait_for("the images to go", lambda: not images(cluster, job))


def test_scancel_of_a_restored_job_with_a_network_of_its_own(cluster: Cluster, directory: Path) -> None:
    """Its pod has the old node's address."""
    server = """import socket, time
s = socket.create_server((socket.gethostname(), 0))
c = socket.create_connection(s.getsockname())
a = s.accept()[0]
print("ready", flush=True)
time.sleep(600)"""
    (directory / "server.py").write_text(server)
    job = cluster.submit("python3 server.py", "--checkpoint-interval=infinite", directory=directory)
    job.wait_output("ready")
    job.checkpoint()
    before = job.node()
    move(job, before)
    restored_from(job)
    after = job.node()
    job.cancel()
    assert job.wait_end().split()[0] == "CANCELLED"
    assert_clean(cluster, before, after)


@pytest.mark.parametrize("kind", ["without us", "fresh", "restored"])
def test_a_task_killed_for_its_memory(cluster: Cluster, directory: Path, kind: str) -> None:
    """Slurm sees it, and says so, as without us: the script ends with srun's status, so the job has FAILED.

    With a checkpoint a crash would be recovered from; this is none, and the job is told.
    """
    (directory / "hog.py").write_text(
        """import os, time
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.1)
x = bytearray(1)
while True: x += bytes(b"x" * (8 << 20))
"""
    )
    option = "off" if kind == "without us" else "infinite"
    job = cluster.submit("srun python3 hog.py", f"--checkpoint-interval={option}", "--mem=200", directory=directory)
    job.wait_output("ready")
    if kind == "restored":
        job.checkpoint()
        move(job, job.node())
        restored_from(job)
    node = job.node()
    (directory / "go").touch()
    assert job.wait_end() == "FAILED", job.output()
    lines = [re.sub(r"^\[.*?\] |^slurmstepd-n\d: |StepId=\d+|: n\d:", "", line) for line in job.output().splitlines()]
    ours = "slurmckpt: task 0 of step 0 died of SIGKILL: not recovered, as its step had no memory left"
    assert (ours in lines) == (kind == "restored")
    assert [line for line in lines if line != ours] == [
        "ready",
        "error: Detected 1 oom_kill event in .0. Some of the step tasks have been OOM Killed.",
        "srun: error task 0: Out Of Memory",
    ]
    assert_clean(cluster, node)


def test_requeue_leaves_the_old_node_clean(cluster: Cluster, directory: Path) -> None:
    """And the images stay, as the next incarnation needs them."""
    job = cluster.submit("python3 chain.py 3000 0.1", "--checkpoint-interval=infinite", directory=directory)
    job.wait_output("^10 ")
    job.checkpoint()
    node = job.node()
    move(job, node)
    assert_clean(cluster, node)
    assert images(cluster, job)
