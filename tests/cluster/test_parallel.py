"""Programs of many processes and threads: a checkpoint, a requeue, and the result is that of an undisturbed run."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.harness import Cluster, Job, finish, move, release, restored_from, wait_for

# Each prints a line a round, and rests then.
PROGRAMS = {
    "openmp": "OMP_NUM_THREADS=4 ./openmp {rounds} {milliseconds}",
    "crowd": "./crowd {rounds} {milliseconds}",
    "blas": "OPENBLAS_NUM_THREADS=3 python3 blas.py {rounds} {seconds}",
    "pool": "python3 pool.py {rounds} {seconds}",
    "pipeline": "bash pipeline.sh {rounds} {seconds}",
}
ROUNDS = 60
STEPS = 60
SRUN = """
export MASTER_ADDR=$(hostname) MASTER_PORT=$((21000 + SLURM_JOB_ID)) USE_LIBUV=0
srun -n2 python3 loader.py {steps} {seconds}
"""
# Debian's PyTorch has no libuv: see test_restore.py.
TORCHRUN = """
export USE_LIBUV=0 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 OMP_NUM_THREADS=1 CRASH=$PWD/crash
python3 -m torch.distributed.run --nproc-per-node=2 --max-restarts=1 --rdzv-backend=c10d \\
    --rdzv-endpoint=$PWD/rendezvous --rdzv-conf=store_type=file loader.py {steps} {seconds} 2>torchrun.err
"""


def commands(pause: float) -> dict[str, str]:
    """Their shell commands, resting for `pause` seconds after each round."""
    return {
        name: program.format(rounds=ROUNDS, milliseconds=int(pause * 1000), seconds=pause)
        for name, program in PROGRAMS.items()
    }


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_threads_pools_and_pipelines_go_on_elsewhere(cluster: Cluster, directory: Path) -> None:
    """Five programs at once, in the background of one script; 1,000 threads among them."""
    for name in ("openmp", "crowd"):
        cluster.run("sh", "-c", f"cd {directory.name} && gcc -O2 -std=gnu11 -pthread -fopenmp -o {name} {name}.c")
    script = "\n".join([*(f"{command} >{name}.out 2>&1 &" for name, command in commands(0.4).items()), "wait"])
    job = cluster.submit(script, "--checkpoint-interval=infinite", directory=directory, held=True)
    outputs = {name: directory / f"{name}.out" for name in PROGRAMS}
    wait_for("some rounds of each", lambda: all(len(lines(path)) > 5 for path in outputs.values()))
    seq = job.checkpoint()
    reached = {name: len(lines(path)) for name, path in outputs.items()}
    assert all(count < ROUNDS for count in reached.values()), reached
    # On a busy machine some may be held already.
    more = {name: min(count + 1, ROUNDS * 3 // 4) for name, count in reached.items()}
    wait_for("more of each", lambda: all(len(lines(path)) >= more[name] for name, path in outputs.items()))
    move(job, job.node())
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    for name, command in commands(0).items():
        wanted = cluster.run("bash", "-c", f"cd {directory.name} && {command}").stdout
        assert outputs[name].read_text() == wanted, name
        assert len(wanted.splitlines()) >= ROUNDS


def steps(job: Job) -> list[str]:
    return re.findall(r"^step .*$", job.output(), re.MULTILINE)


def undisturbed(cluster: Cluster, directory: Path) -> list[str]:
    """The losses of two ranks that nobody disturbs."""
    job = cluster.submit(
        SRUN.format(steps=STEPS, seconds=0), "--ntasks=2", "--mem=5000", name="alone", directory=directory
    )
    assert job.wait_end() == "COMPLETED", job.output()
    found = steps(job)
    assert len(found) == STEPS
    return found


def test_ddp_with_data_loader_workers(cluster: Cluster, directory: Path) -> None:
    """Each rank has two workers, which hand over their tensors in /dev/shm; pinned memory is asked for."""
    job = cluster.submit(
        SRUN.format(steps=STEPS, seconds=0.1),
        "--checkpoint-interval=infinite",
        "--ntasks=2",
        "--mem=5000",
        directory=directory,
        held=True,
    )
    job.wait_output("^step 10 ", 120)
    seq = job.checkpoint()
    job.wait_output("^step 20 ")
    move(job, job.node())
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    assert steps(job) == undisturbed(cluster, directory)


def test_torchrun_restarts_its_workers_after_a_restore(cluster: Cluster, directory: Path) -> None:
    """The elastic agent is restored with its workers; when one of them dies then, it starts them all again."""
    job = cluster.submit(
        TORCHRUN.format(steps=STEPS, seconds=0.3),
        "--checkpoint-interval=infinite",
        "--checkpoint-recover=nodefail",
        "--mem=5000",
        directory=directory,
        held=True,
    )
    job.wait_output("^step 10 ", 120)
    seq = job.checkpoint()
    move(job, job.node())
    assert restored_from(job) == seq
    cluster.run("touch", f"{directory.name}/crash")
    release(job)
    wait_for("the death of a worker", lambda: not (directory / "crash").exists())
    assert job.wait_end() == "COMPLETED", job.output() + (directory / "torchrun.err").read_text()
    wanted = undisturbed(cluster, directory)
    found = steps(job)
    before = len(found) - STEPS
    assert before > 10
    assert found == wanted[:before] + wanted
