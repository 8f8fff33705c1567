"""Ranks of NCCL on a cluster: the boundary gate between them and CRIU. NCCL is a double, the device is simulated."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import GATE, TREE, Cluster, Job, events, finish, move, restored_from, settings, wait_for

STEPS = 120
ALWAYS = '[gate]\nenabled = "always"\n'
OPTIONS = ("--checkpoint-interval=infinite", "--ntasks=2", "--time=5")


@pytest.fixture(scope="module")
def libnccl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libnccl")
    subprocess.run(["make", "-s", "-C", str(TREE / "tests/doubles/libnccl"), f"BUILD={folder}"], check=True)
    return folder / "libnccl.so.2"


@pytest.fixture
def prepared(libnccl: Path, directory: Path) -> Iterator[Path]:
    """A directory with the program and the double."""
    shutil.copy(libnccl, directory / "libnccl.so.2")
    yield directory


def undisturbed(cluster: Cluster, directory: Path, libnccl: Path, steps: int) -> str:
    """What the ranks print without Slurm, and without anybody who stops them."""
    alone = cluster.directory(f"{directory.name}-alone")
    shutil.copy(libnccl, alone / "libnccl.so.2")
    ranks = f"RUN=1 python3 collectives.py 1 {steps} 0 & RUN=1 python3 collectives.py 0 {steps} 0; wait"
    return cluster.run("bash", "-c", f"cd {alone.name}; {ranks}").stdout


def ranks_of(job: Job) -> list[dict[str, object]]:
    """What status tells of them, on the node where the job runs."""
    done = job.cluster.root(job.node(), f"slurmckpt status {job.number} --json --checkpoint-dir /store")
    found: list[dict[str, object]] = json.loads(done.stdout)["coordinator"]["ranks"]
    return found


def test_ranks_are_captured_at_a_boundary_and_go_on_elsewhere(cluster: Cluster, prepared: Path, libnccl: Path) -> None:
    with settings(cluster, ALWAYS):
        job = cluster.submit(
            f"srun sh -c 'exec python3 collectives.py $SLURM_PROCID {STEPS} 0.1'\n{GATE}", *OPTIONS, directory=prepared
        )
        job.wait_output("^3 ")
        told = wait_for("the ranks", lambda: ranks_of(job) or None)
        assert [(one["step"], one["rank"], one["ranks"]) for one in told] == [("0", 0, 2), ("0", 1, 2)]
        assert all(one["last"] in ("AllReduce", "Send", "Recv") for one in told)
        seq = job.checkpoint()
        # They go on, and a second one is no different.
        job.wait_output("^8 ")
        seq = job.checkpoint()
        move(job, job.node())
        assert restored_from(job) == seq
        job.wait_output("^20 ")
        # The gate of a restored job is that of its image, and works as before.
        assert job.checkpoint() == seq + 1
        assert finish(job) == "COMPLETED", job.output()
    assert not events(job)
    assert job.output() == undisturbed(cluster, prepared, libnccl, STEPS)


def test_a_rank_that_does_not_come_is_named_and_all_go_back(cluster: Cluster, prepared: Path, libnccl: Path) -> None:
    """Rank 0 uses a whole CPU while it waits: only the gate knows that nothing goes on."""
    with settings(cluster, ALWAYS + '[recover]\nhang_after = "10s"'):
        job = cluster.submit(
            f"srun sh -c 'exec python3 collectives.py $SLURM_PROCID {STEPS} 0.1 70'",
            "--checkpoint-recover=hang",
            *OPTIONS,
            directory=prepared,
        )
        job.wait_output("^5 ")
        seq = job.checkpoint()
        assert job.wait_end() == "COMPLETED", job.output()
    texts = " ".join(events(job))
    assert f"restored in place from #{seq}" in texts
    assert "enqueued no collective (rank 1 (pid " in texts
    assert job.output() == undisturbed(cluster, prepared, libnccl, STEPS)


def test_a_checkpoint_is_skipped_when_a_rank_does_not_come(cluster: Cluster, prepared: Path) -> None:
    """Rank 1 sleeps for longer than anybody waits: the job goes on, and its user reads who it was."""
    with settings(cluster, ALWAYS + 'patience = "1s"\nattempts = 2\n'):
        job = cluster.submit(
            "srun sh -c 'exec python3 collectives.py $SLURM_PROCID 40 0 4'", *OPTIONS, directory=prepared
        )
        wait_for("rank 1 hangs", lambda: (prepared / "hung").exists() or None)
        done = cluster.run("slurmckpt", "checkpoint", job.name, check=False)
        assert "NO_BOUNDARY: no boundary within 1 s: rank 1 (pid " in done.stderr
        job.wait_output(r"rank 1 \(pid ")
        job.cancel()
