"""Every test here runs on a sandbox cluster with real Slurm and real CRIU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import DDP, STEPS, TRAIN, TREE, Cluster, training_lines

HERE = Path(__file__).parent
# Tests that run side by side need clusters of their own (pytest-xdist; make test).
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
if WORKER:
    os.environ["SLURMCKPT_SANDBOX"] = f"{os.environ.get('SLURMCKPT_SANDBOX', 'slurmckpt')}-{WORKER}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:
                # The first test of a run waits for the cluster, which has to be built before it is there for the first time.
                item.add_marker(pytest.mark.timeout(func_only=True))


@pytest.fixture(scope="session")
def running_cluster() -> Iterator[Cluster]:
    """The cluster, brought up or brought up to date. Only that of a worker is brought down again."""
    if os.geteuid() != 0:
        pytest.skip("cluster tests need root")
    subprocess.run([str(TREE / "sandbox/cluster"), "up", "--nodes", "2", "--programs"], check=True, timeout=1800)
    home = Path(
        subprocess.run(
            [str(TREE / "sandbox/cluster"), "path"], check=True, capture_output=True, text=True
        ).stdout.strip()
    )
    cluster = Cluster(home / "alice")
    # Those of a run that was killed.
    cluster.run("scancel", "--user", "alice", check=False)
    yield cluster
    if WORKER:
        subprocess.run([str(TREE / "sandbox/cluster"), "down"], check=True)


@pytest.fixture(scope="session")
def reference(running_cluster: Cluster) -> list[str]:
    """The lines of an undisturbed training."""
    directory = running_cluster.directory("reference")
    job = running_cluster.submit(TRAIN.format(steps=STEPS), *DDP, name="reference", directory=directory)
    assert job.wait_end(280) == "COMPLETED", job.output()
    lines = training_lines(job)
    assert len(lines) == STEPS + 2
    return lines


@pytest.fixture
def cluster(running_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with all nodes idle; afterwards no job is left and no node is drained."""
    running_cluster.all_idle()
    yield running_cluster
    running_cluster.run("scancel", "--user", "alice", check=False)
    running_cluster.all_idle()


@pytest.fixture
def directory(cluster: Cluster, request: pytest.FixtureRequest) -> Path:
    """A directory of the test's own below /home/alice."""
    return cluster.directory(request.node.name.replace("/", "-").replace("[", "-").rstrip("]"))
