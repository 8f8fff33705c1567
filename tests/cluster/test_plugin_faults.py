"""Each callback of the plugin crashes, hangs or fails: the job ends as it must, and its node is not drained.

The plugin is built anew, with the places in it, and put over the installed one on one node.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import TREE, Cluster, chain, wait_for
from tests.cluster.test_cleanup import assert_clean

NODE = "n1"
INSTALLED = "/usr/lib/slurmckpt/slurmckpt.so"
ORDERS = "/run/slurmckpt-faults"


@pytest.fixture(scope="module")
def faulty_plugin(running_cluster: Cluster) -> Iterator[Cluster]:
    """Built and mounted."""
    cluster = running_cluster
    sources = subprocess.run(["tar", "-C", str(TREE), "-c", "spank"], check=True, capture_output=True).stdout
    archive = cluster.home / "spank.tar"
    archive.write_bytes(sources)
    build = f"rm -rf /root/spank; tar -C /root -xf /home/alice/spank.tar; make -C /root/spank FAULTS=1 BUILD=/root/faulty; mkdir -p {ORDERS}"
    cluster.root(NODE, f"set -e; {build}; mount --bind /root/faulty/slurmckpt.so {INSTALLED}")
    yield cluster
    cluster.root(NODE, f"umount {INSTALLED}; rm -rf {ORDERS} /root/spank /root/faulty")


FATES = {
    # A callback that fails stops nothing: the plugin is optional.
    ("init", "error"): "runs",
    ("init_post_opt", "error"): "runs",
    ("task_init_privileged", "error"): "runs",
    ("task_init", "error"): "runs",
    # What runs in the task's own process takes the task with it.
    ("task_init_privileged", "crash"): "FAILED",
    ("task_init", "crash"): "FAILED",
    ("task_init_privileged", "hang"): "hangs",
    ("task_init", "hang"): "hangs",
}


@pytest.mark.parametrize(("place", "action"), FATES, ids=lambda word: word)
def test_a_callback(faulty_plugin: Cluster, cluster: Cluster, directory: Path, place: str, action: str) -> None:
    fate = FATES[place, action]
    cluster.root(NODE, f"echo {action} >{ORDERS}/plugin.{place}")
    try:
        job = cluster.submit(
            "python3 chain.py 20 0.1", f"--nodelist={NODE}", "--checkpoint-interval=infinite", directory=directory
        )
        if fate == "hangs":
            job.wait_running()
            wait_for("its task", lambda: cluster.root(NODE, "pgrep -f 'slurmstepd: .*batch'", check=False).stdout)
            job.cancel()
            assert job.wait_end().split()[0] == "CANCELLED"
        elif fate == "runs":
            assert job.wait_end() == "COMPLETED", job.output()
            assert [line for line in job.output().splitlines() if line[:1].isdigit()] == chain(20)
        else:
            assert job.wait_end() == fate
    finally:
        cluster.root(NODE, f"rm -f {ORDERS}/plugin.{place}")
    cluster.all_idle()
    assert_clean(cluster, NODE)
