"""Sockets of every kind and in every state come back, each with what it held: programs/sockets.py has the cases."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.harness import Cluster, events, move, restored_from


def test_sockets_inside_the_pod_are_exact(cluster: Cluster, directory: Path) -> None:
    """Both ends of each are in the pod."""
    job = cluster.submit("exec python3 sockets.py", "--checkpoint-interval=infinite", "--time=5", directory=directory)
    job.wait_output("^ready$")
    job.checkpoint()
    move(job, job.node())
    restored_from(job)
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    lines = job.output().splitlines()
    wrong = [line for line in lines[1:-1] if not line.endswith(" ok")]
    assert not wrong, "\n".join(wrong)
    assert (lines[0], lines[-1]) == ("ready", "end") and len(re.findall("^tcp_", job.output(), re.MULTILINE)) > 10
    assert not events(job)
