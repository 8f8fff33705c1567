"""A job loses its node, or is requeued, and goes on elsewhere: nothing lost, nothing doubled, the result the same bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.harness import (
    DDP,
    STEPS,
    TRAIN,
    Cluster,
    chain,
    finish,
    move,
    restored_from,
    training_lines,
    wait_attempts,
    wait_for,
)

# Debian's PyTorch has no libuv, and torchrun asks for it wherever it makes a TCP store of its own; the workers' store obeys USE_LIBUV.
TORCHRUN = """
export USE_LIBUV=0 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 OMP_NUM_THREADS=1
python3 -m torch.distributed.run --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=$PWD/rendezvous \\
    --rdzv-conf=store_type=file held_train.py --steps {steps} --width 32
"""


@pytest.mark.parametrize("script", [TRAIN, TORCHRUN], ids=["srun", "torchrun"])
def test_two_ddp_ranks_survive_the_death_of_their_node(
    cluster: Cluster, directory: Path, reference: list[str], script: str
) -> None:
    """Sockets on the node's own address included: MASTER_ADDR is the host name."""
    job = cluster.submit(script.format(steps=STEPS), "--checkpoint-interval=4s", *DDP, directory=directory, held=True)
    job.wait_checkpoints(1)
    node = job.node()
    cluster.verb("fail", node)
    try:
        restored_from(job)
        assert job.node() != node
        assert finish(job) == "COMPLETED", job.output()
    finally:
        cluster.verb("start", node)
    assert training_lines(job) == reference


def test_requeue_of_ddp_ranks_twice(cluster: Cluster, directory: Path, reference: list[str]) -> None:
    """The second restore comes from a checkpoint of the restored job."""
    options = ("--checkpoint-interval=infinite", *DDP)
    job = cluster.submit(TRAIN.format(steps=STEPS), *options, directory=directory, held=True)
    job.wait_output("^step 20 ")
    first = job.checkpoint()
    move(job, job.node())
    assert restored_from(job) == first
    job.wait_output("^step 60 ")
    second = job.checkpoint()
    assert second > first
    move(job, job.node())
    assert wait_for("the second restore", lambda: restored_from(job) == second and len(job.status()["attempts"]) == 3)
    assert finish(job) == "COMPLETED", job.output()
    assert training_lines(job) == reference


def test_plain_python_with_a_file_of_its_own(cluster: Cluster, directory: Path) -> None:
    """What the program wrote after the boundary, to stdout or to its own file, is not there twice."""
    job = cluster.submit(
        "echo preamble\npython3 chain.py 150 0.1 own.txt\necho end",
        "--checkpoint-interval=infinite",
        directory=directory,
        held=True,
    )
    job.wait_output("^20 ")
    seq = job.checkpoint()
    job.wait_output("^40 ")
    move(job, job.node())
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    assert job.output().splitlines() == ["preamble", *chain(150), "end"]
    assert (directory / "own.txt").read_text().splitlines() == chain(150)


def test_a_plain_program_is_restored_again_and_again(cluster: Cluster, directory: Path) -> None:
    """Its output file is the job's: three restores, each from a checkpoint of the one before."""
    job = cluster.submit("python3 chain.py 250 0.1", "--checkpoint-interval=infinite", directory=directory, held=True)
    for number in (1, 2, 3):
        reached = len(job.output().splitlines())
        job.wait_output(f"^{min(reached + 10, 186)} ")
        seq = job.checkpoint()
        move(job, job.node())
        wait_attempts(job, number + 1)
        assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    assert job.output().splitlines() == chain(250)


def test_c_program_with_threads(cluster: Cluster, directory: Path) -> None:
    """Compared with a run of its own."""
    cluster.run("sh", "-c", f"cd {directory.name} && gcc -O2 -pthread -o chain chain.c")
    wanted = cluster.run(f"/home/alice/{directory.name}/chain", "120").stdout
    job = cluster.submit("exec ./chain 120", "--checkpoint-interval=infinite", directory=directory, held=True)
    job.wait_output("^15 ")
    seq = job.checkpoint()
    job.wait_output("^30 ")
    move(job, job.node())
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    assert job.output() == wanted


@pytest.mark.parametrize("mode", ["truncate", "append"])
def test_output_of_a_step_is_exact_whatever_the_open_mode(cluster: Cluster, directory: Path, mode: str) -> None:
    """The script runs again from its top, its step goes on: each line once, those of the script too."""
    script = "echo preamble\nsrun -n2 sh -c 'python3 chain.py 120 0.1 own.$SLURM_PROCID'\necho end"
    job = cluster.submit(
        script, "--checkpoint-interval=infinite", f"--open-mode={mode}", "--ntasks=2", directory=directory, held=True
    )
    job.wait_output("^20 ")
    seq = job.checkpoint()
    job.wait_output("^40 ")
    move(job, job.node())
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    lines = job.output().splitlines()
    assert lines[0] == "preamble" and lines[-1] == "end"
    assert sorted(lines[1:-1]) == sorted(chain(120) * 2)
    assert (directory / "own.0").read_text().splitlines() == chain(120)
    assert (directory / "own.1").read_text().splitlines() == chain(120)


def test_a_file_that_srun_opens_is_put_back_again_and_again(cluster: Cluster, directory: Path) -> None:
    """Its number among srun's descriptors differs from run to run; its content must not."""
    script = "srun --output=log python3 chain.py 150 0.1"
    job = cluster.submit(script, "--checkpoint-interval=infinite", directory=directory, held=True)
    log = directory / "log"
    for count in (5, 15, 25):
        wait_for(f"{count} lines", lambda count=count: log.exists() and len(log.read_text().splitlines()) > count)  # type: ignore[misc]
        seq = job.checkpoint()
        job.requeue()
        wait_for("the next attempt", lambda seq=seq: job.status()["attempts"][-1]["restored_from"] == seq)  # type: ignore[misc]
    assert finish(job) == "COMPLETED", job.output()
    assert log.read_text().splitlines() == chain(150)


@pytest.mark.parametrize("label", [False, True], ids=["plain", "labels"])
def test_lines_that_were_half_written_are_whole(cluster: Cluster, directory: Path, label: bool) -> None:
    """Two tasks write blocks that end in mid-line; the checkpoint falls between two blocks."""
    script = f"srun -n2 {'--label' if label else ''} python3 blocks.py 400 37 0.02"
    job = cluster.submit(script, "--checkpoint-interval=infinite", "--ntasks=2", directory=directory, held=True)
    job.wait_output("0 line 60 ")
    seq = job.checkpoint()
    job.wait_output("0 line 100 ")
    move(job, job.node())
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    wanted = [
        f"{f'{rank}: ' if label else ''}{rank} line {number} {'x' * (number % 50)}"
        for rank in "01"
        for number in range(400)
    ]
    assert sorted(job.output().splitlines()) == sorted(wanted)


def test_checkpoints_by_the_timer_and_keep(cluster: Cluster, directory: Path) -> None:
    """The timer takes them, and only the newest N stay in the store."""
    job = cluster.submit(
        "python3 chain.py 1200 0.1", "--checkpoint-interval=2s", "--checkpoint-keep=3", directory=directory, held=True
    )
    notes = job.wait_checkpoints(5)
    assert [note["seq"] for note in notes] == list(range(1, len(notes) + 1))
    assert all(0 < note["freeze_seconds"] < 60 and note["bytes"] > 1e6 for note in notes)
    wait_for("only three are kept", lambda: sum(note["kept"] for note in job.status()["checkpoints"]) == 3)
    job.cancel()
