"""A node that was given up for dead and lives: it notices, publishes nothing, ends what it runs, and leaves nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Job, chain, finish, move, restored_from, wait_for
from tests.cluster.test_cleanup import assert_clean

# sandbox/lib/config.sh: store.lease_watch.
WATCH_SECONDS = 2.0
# The second: its slurmstepd goes on trying to tell the controller, and gives up (UnkillableStepTimeout).
SLURM_ENDS_IT = re.compile(r"error: \*\*\* JOB \d+ (ON n\d CANCELLED|STEPD TERMINATED ON n\d) AT ")
HOG = """import os, time
kept = os.urandom(400 << 20)
while not os.path.exists("stop"): time.sleep(0.1)
"""


def store_of(cluster: Cluster, job: Job) -> Path:
    """The job's directory in the store."""
    (found,) = cluster.home.parent.parent.glob(f"store/*/alice/{job.number}")
    return found


def epochs(cluster: Cluster, job: Job) -> dict[int, int]:
    """Sequence numbers of the committed checkpoints, and which incarnation took them."""
    manifests = store_of(cluster, job).glob("[0-9]*/manifest.json")
    read = [json.loads(path.read_text()) for path in manifests if path.parent.name.isdigit()]
    return {manifest["seq"]: manifest["epoch"] for manifest in read}


def alive(cluster: Cluster, node: str, name: str) -> bool:
    """Whether a rank that runs this program is on a node; its shim may be there for a while longer."""
    return cluster.root(node, f"pgrep -f '^(/usr/bin/)?python3 {name}'", check=False).returncode == 0


def wait_restored(job: Job, node: str) -> int:
    """Wait until it goes on on another node than `node`; which checkpoint it came from."""
    wait_for(f"job {job.number} on another node", lambda: job.state() == "RUNNING" and job.node() != node, 120)
    wait_for("a second attempt", lambda: len(job.status()["attempts"]) == 2, 60)
    return restored_from(job)


@contextmanager
def cut(cluster: Cluster, node: str) -> Iterator[None]:
    """The node without its network. Afterwards it is back, nothing is left on it, and it is as good as any."""
    cluster.verb("cut", node)
    try:
        yield
    finally:
        cluster.verb("start", node)
    cluster.all_idle()
    # By itself: slurmd runs no epilog for a job that slurmctld knows to be elsewhere. When Slurm ends the shims: Slurm 24.11
    # hears of them a minute later, when the node registers next.
    assert_clean(cluster, node, seconds=180)
    assert cluster.run("srun", "--checkpoint-interval=10m", f"--nodelist={node}", "hostname").stdout == f"{node}\n"


@contextmanager
def silent_store(cluster: Cluster, node: str, directory: Path) -> Iterator[None]:
    """The store does not answer on a node."""
    program = f"/home/alice/{directory.name}/hang.py"
    cluster.root(
        node, f"rm -f /tmp/hanging /tmp/answer; setsid python3 {program} /store >/tmp/hang.log 2>&1 </dev/null &"
    )
    try:
        wait_for("a store that hangs", lambda: cluster.root(node, "test -e /tmp/hanging", check=False).returncode == 0)
        yield
    finally:
        cluster.root(node, "touch /tmp/answer")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["batch", "step"])
def test_a_node_that_lost_its_network(cluster: Cluster, directory: Path, kind: str) -> None:
    """Its ranks go on for as long as Slurm takes to give it up; no line of theirs is in the files of the job in the end."""
    run = "python3 chain.py 500 0.1 own.txt"
    job = cluster.submit(run if kind == "batch" else f"srun {run}", "--checkpoint-interval=2s", directory=directory)
    job.wait_checkpoints(2)
    node = job.node()
    with cut(cluster, node):
        assert alive(cluster, node, "chain.py")
        wait_restored(job, node)
        # It was given the time to notice before anything of the job started here.
        assert not alive(cluster, node, "chain.py")
        before = {seq for seq, epoch in epochs(cluster, job).items() if epoch == 1}
        job.wait_output("^499 ")
        assert job.wait_end() == "COMPLETED", job.output()
        found = job.status()
        assert {note["seq"] for note in found["checkpoints"] if note["epoch"] == 2}
        assert (
            max(note["time"] for note in found["checkpoints"] if note["epoch"] == 1) < found["attempts"][1]["started"]
        )
        assert {seq for seq, epoch in epochs(cluster, job).items() if epoch == 1} <= before
    # slurmstepd of the old node says so itself when Slurm ends it there.
    lines = [line for line in job.output().splitlines() if not SLURM_ENDS_IT.search(line)]
    assert lines == chain(500)
    assert (directory / "own.txt").read_text().splitlines() == chain(500)
    assert [attempt["outcome"] for attempt in job.status()["attempts"]] == ["lost", "COMPLETED"]


@pytest.mark.long
def test_the_job_may_come_back_to_the_node(cluster: Cluster, directory: Path) -> None:
    """slurmd remembers a script that nobody has told it to end: then it drains the node when the job comes back."""
    job = cluster.submit("exec python3 chain.py 3000 0.1", "--checkpoint-interval=infinite", directory=directory)
    job.wait_output("^5 ")
    job.checkpoint()
    node = job.node()
    with cut(cluster, node):
        wait_restored(job, node)
        assert not alive(cluster, node, "chain.py")
        cluster.verb("start", node)
        wait_for("the node", lambda: cluster.run("sinfo", "-hn", node, "-o", "%T").stdout.split()[0] == "idle", 60)
        move(job, job.node())
        assert job.node() == node
        job.cancel()
        assert job.wait_end().split()[0] == "CANCELLED"
    assert "Duplicate" not in cluster.run("sinfo", "-hN", "-o", "%E").stdout


@pytest.mark.long
def test_a_checkpoint_that_was_being_published(cluster: Cluster, directory: Path) -> None:
    """The coordinator stands still in the middle of a commit, as one whose store hangs, and wakes up too late."""
    (directory / "hog.py").write_text(HOG)
    job = cluster.submit("python3 hog.py", "--checkpoint-interval=1s", "--mem=2000", directory=directory)
    job.wait_checkpoints(1)
    node = job.node()
    pid = cluster.root(node, f"cat /run/slurmckpt/{job.number}/coordinator.pid").stdout.split()[0]
    store = store_of(cluster, job)

    def caught() -> bool:
        """Stopped while a partial checkpoint lies there."""
        if not list(store.glob("*.partial")):
            return False
        cluster.root(node, f"kill -STOP {pid}")
        if list(store.glob("*.partial")):
            return True
        cluster.root(node, f"kill -CONT {pid}")
        return False

    wait_for("a commit under way", caught, 60)
    with cut(cluster, node):
        wait_restored(job, node)
        # Nobody could tell it; but there is nothing left that it could publish.
        assert alive(cluster, node, "hog.py")
        published = {seq for seq, epoch in epochs(cluster, job).items() if epoch == 1}
        cluster.root(node, f"kill -CONT {pid}")
        wait_for("the ranks of the old node to die", lambda: not alive(cluster, node, "hog.py"), 3 * WATCH_SECONDS + 10)
        job.wait_checkpoints(len(job.status()["checkpoints"]) + 2)
        assert {seq for seq, epoch in epochs(cluster, job).items() if epoch == 1} <= published
        assert [attempt["outcome"] for attempt in job.status()["attempts"]] == ["lost", None]
        (directory / "stop").touch()
        assert job.wait_end() == "COMPLETED", job.output()


def test_a_store_that_does_not_answer_costs_the_job_nothing(cluster: Cluster, directory: Path) -> None:
    """Fail open: when it answers again, checkpoints go on."""
    job = cluster.submit("python3 chain.py 250 0.1", "--checkpoint-interval=infinite", directory=directory, held=True)
    job.wait_output("^5 ")
    first, node = job.checkpoint(), job.node()
    with silent_store(cluster, node, directory):
        wait_for(
            "the watch to say that the store is silent",
            lambda: (
                f"job {job.number}: the store does not answer"
                in cluster.root(node, "cat /var/log/slurmckpt.log").stdout
            ),
        )
        reached = len(job.output().splitlines())
        job.wait_output(f"^{min(reached + 30, 186)} ")
    assert job.checkpoint() > first
    assert finish(job) == "COMPLETED", job.output()
    assert job.output().splitlines() == chain(250)


@pytest.mark.long
def test_a_node_that_lost_its_network_and_its_store(cluster: Cluster, directory: Path) -> None:
    """It cannot know, so its ranks live, until the store answers: that is the first that it hears."""
    job = cluster.submit("python3 chain.py 3000 0.1", "--checkpoint-interval=infinite", directory=directory)
    job.wait_output("^5 ")
    seq, node = job.checkpoint(), job.node()
    with cut(cluster, node):
        with silent_store(cluster, node, directory):
            assert wait_restored(job, node) == seq
            assert alive(cluster, node, "chain.py")
        wait_for(
            "the ranks of the old node to die", lambda: not alive(cluster, node, "chain.py"), 3 * WATCH_SECONDS + 10
        )
        assert set(epochs(cluster, job)) == {seq}
        assert job.state() == "RUNNING"
        job.cancel()
