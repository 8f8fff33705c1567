"""Files that jobs write: as their programs believe them to be, on whichever node they go on.

In each test the job goes on writing after the checkpoint, so that the files are not those of the boundary when it is
restored.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Job, move, restored_from

ON_REQUEST = "--checkpoint-interval=infinite"


def captured_moved_and_ended(job: Job, kinds: list[str], first: int, later: int) -> str:
    """Checkpoint when every part has printed `first`, move when it has printed `later`; the output in the end."""
    for kind in kinds:
        job.wait_output(f"^{kind} {first}$")
    seq = job.checkpoint()
    for kind in kinds:
        job.wait_output(f"^{kind} {later}$")
    move(job, job.node())
    assert restored_from(job) == seq
    assert job.wait_end() == "COMPLETED", job.output()
    return job.output()


def assert_exact(output: str, kinds: list[str], count: int) -> None:
    """Every part has printed each of its numbers once, and found its files as it believed them to be."""
    for kind in kinds:
        wanted = [f"{kind} {number}" for number in range(count)] + [f"{kind} exact"]
        assert [line for line in output.splitlines() if line.startswith(f"{kind} ")] == wanted


def test_sqlite_databases_have_exactly_the_rows_that_were_written(cluster: Cluster, directory: Path) -> None:
    """Whether journal or write-ahead log are open, exist, or were removed since the boundary."""
    kinds = [f"{mode} {pauses}" for mode in ("wal", "delete", "persist") for pauses in ("inside", "outside")]
    script = "".join(f"python3 rows.py {kind.replace(' ', '-')}.db {kind} 150 0.03 &\n" for kind in kinds) + "wait"
    job = cluster.submit(script, ON_REQUEST, directory=directory)
    assert_exact(captured_moved_and_ended(job, kinds, 30, 70), kinds, 150)


@pytest.mark.parametrize("kinds", [["file", "mapped"], ["hdf"]], ids=["plain and mapped", "hdf5"])
def test_files_that_are_changed_in_place(cluster: Cluster, directory: Path, kinds: list[str]) -> None:
    """Each new content depends on the old one: written twice it would be another."""
    if "hdf" in kinds and cluster.run("python3", "-c", "import h5py", check=False).returncode:
        pytest.skip("no h5py in the sandbox")
    script = "".join(f"python3 inplace.py {kind} {kind}.data 150 0.03 &\n" for kind in kinds) + "wait"
    job = cluster.submit(script, ON_REQUEST, directory=directory)
    assert_exact(captured_moved_and_ended(job, kinds, 30, 70), kinds, 150)
