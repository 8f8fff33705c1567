"""SIGSTOP and SIGCONT that Slurm sends to a batch script alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, wait_for


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("way", ["--batch", "--full"])
def test_a_batch_script_is_stopped_and_goes_on(cluster: Cluster, directory: Path, way: str) -> None:
    """--batch stops its shell alone, --full what it runs in the foreground as well."""
    script = f"{'exec ' if way == '--batch' else ''}python3 chain.py 1000 0.1 program; true"
    job = cluster.submit(script, "--checkpoint-interval=infinite", directory=directory)
    program = directory / "program"
    wait_for("the program runs", lambda: lines(program) > 5)

    def stands() -> bool:
        # That nothing comes can only be waited for in time.
        before = lines(program)
        time.sleep(1.5)
        return lines(program) == before

    cluster.run("scancel", way, "-s", "STOP", str(job.number))
    wait_for("it stands still", stands)

    def refused() -> bool:
        done = cluster.run("slurmckpt", "checkpoint", job.name, node=job.node(), check=False)
        return "the job is suspended" in done.stderr

    # On a busy machine it may have stood still before the signal came.
    wait_for("the refusal", refused)
    cluster.run("scancel", way, "-s", "CONT", str(job.number))
    before = lines(program)
    wait_for("it goes on", lambda: lines(program) > before)
