"""TCP connections between the steps of a job, and between a step and the batch script: programs/crossing.py has them.

Whatever is lost, doubled or changed in one of them is seen by its other end.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.harness import Cluster, Job, events, move, restored_from, wait_attempts, wait_for

# Between two steps by the name of the node, between a step and the script over loopback.
SCRIPT = """
srun --overlap -n1 python3 crossing.py server 2 &
srun --overlap -n1 python3 crossing.py client step node &
python3 crossing.py client script 127.0.0.1
wait
"""
ALL = {f"{name} {kind}" for name in ("step", "script") for kind in ("busy", "full", "half", "idle")}


def begin(cluster: Cluster, directory: Path, *options: str) -> Job:
    job = cluster.submit(SCRIPT, "--checkpoint-interval=infinite", "--time=5", *options, directory=directory)
    job.wait_output("^ready$")
    return job


def end(job: Job, directory: Path) -> None:
    """Let all connections come to their ends; each has got what the other has sent."""
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    found = re.findall(r"^(client|server) (\w+ \w+) (\d+) (\d+)$", job.output(), re.MULTILINE)
    clients = {what: (sent, received) for side, what, sent, received in found if side == "client"}
    servers = {what: (received, sent) for side, what, sent, received in found if side == "server"}
    assert clients == servers and clients.keys() == ALL, job.output()
    assert len(found) == 2 * len(ALL) and "WRONG" not in job.output(), job.output()


def test_they_go_on_elsewhere_again_and_again(cluster: Cluster, directory: Path) -> None:
    """Also in the job that goes on after a checkpoint, and in the second generation."""
    job = begin(cluster, directory)
    for generation in range(2):
        for _ in range(2):
            seq = job.checkpoint()
        move(job, job.node())
        wait_attempts(job, generation + 2)
        assert restored_from(job) == seq
    end(job, directory)
    assert not events(job)


def test_they_go_on_in_place_when_a_step_has_crashed(cluster: Cluster, directory: Path) -> None:
    """All pods go back, with both ends of each."""
    job = begin(cluster, directory)
    seq = job.checkpoint()
    cluster.root(job.node(), "pkill -KILL -f '^[^ ]*python3 crossing.py client step'")
    wait_for(
        "the restore in place", lambda: any(text.endswith(f"restored in place from #{seq}") for text in events(job))
    )
    end(job, directory)
