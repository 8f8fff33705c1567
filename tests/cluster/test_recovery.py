"""A rank that crashes or hangs in a healthy allocation: all ranks go back to the last checkpoint, in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Job, chain, wait_for
from tests.cluster.test_restore import reference

__all__ = ["reference"]

MANUAL = "--checkpoint-interval=infinite"


def events(job: Job) -> list[str]:
    """What the job's record says has happened."""
    return [event["text"] for event in job.status().get("events", [])]


def kill(job: Job, command: str, signal: str = "KILL") -> None:
    """Kill the newest process of the job's node whose command line matches, from outside of Slurm."""
    job.cluster.run("pkill", "-n", f"-{signal}", "-f", command, user="root", node=job.node())


def wait_restored_in_place(job: Job, count: int = 1) -> list[str]:
    """Wait until so many restores in place have been made; what they were for."""

    def made() -> list[str] | None:
        found = [text for text in events(job) if "restored in place from" in text]
        return found if len(found) >= count else None

    return wait_for(f"{count} restores in place of job {job.number}: {events(job)}", made, 90)


@contextmanager
def settings(cluster: Cluster, text: str) -> Iterator[None]:
    """The site's settings with these lines added."""
    file = "/etc/slurmckpt/slurmckpt.toml"
    cluster.root("ctl", f"cp {file} {file}.test && cat >>{file} <<'END'\n{text}\nEND")
    try:
        yield
    finally:
        cluster.root("ctl", f"mv {file}.test {file}")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exec python3 chain.py 100 0.1 own.txt", "task 0 of step batch died of SIGKILL"),
        ("python3 chain.py 100 0.1 own.txt\nexit $?", "task 0 of step batch ended with exit code 137"),
    ],
    ids=["task", "in-script"],
)
def test_a_plain_program_that_is_killed(cluster: Cluster, directory: Path, script: str, why: str) -> None:
    job = cluster.submit(script, MANUAL, directory=directory)
    job.wait_output("^10 ")
    seq = job.checkpoint()
    job.wait_output("^25 ")
    kill(job, "chain.py 100")
    assert wait_restored_in_place(job) == [f"{why}: all ranks were restored in place from #{seq}"]
    assert job.wait_end() == "COMPLETED", job.output()
    assert job.output().splitlines() == chain(100)
    assert (directory / "own.txt").read_text().splitlines() == chain(100)
    assert len(job.status()["attempts"]) == 1
    assert job.info()["restart_cnt"] == 0
