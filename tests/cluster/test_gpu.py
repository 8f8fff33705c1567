"""GPU ranks on real Slurm and real CRIU, over doubles of NVIDIA's libraries: a simulated device, no real one."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import TREE, Cluster, Job, events, finish, move, restored_from, settings, wait_for
from tests.cluster.test_gate import ranks_of
from tests.doubles import simulated

NODES = ("n1", "n2")
STEPS = 200
# Where they wait for finish().
HELD_AT = STEPS * 3 // 4 - 1
RANKS = 'srun -n2 sh -c \'exec python3 gpu_rank.py {steps} 2 "$SLURM_PROCID" "$SLURM_JOB_ID"\''
# Devices that CRIU cannot dump, wherever they are still open: those of FUSE, under NVIDIA's names.
INSTALL = """
cp {home}/simulated/*.so.1 /usr/lib/x86_64-linux-gnu/ && ldconfig
mkdir -p /run/simulated-gpu && chmod 1777 /run/simulated-gpu
printf 'seed={seed}\\n' >/run/simulated-gpu/settings
for name in nvidiactl nvidia0 nvidia1; do
    [ -e /dev/$name ] || mknod -m 666 /dev/$name c 10 229
    head -c 0 /dev/$name || exit 1
done
"""
REMOVE = """
rm -rf /usr/lib/x86_64-linux-gnu/libcuda.so.1 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 /run/simulated-gpu /dev/nvidia*
ldconfig
"""


def values(steps: int, rank: int = 0) -> list[str]:
    """What a rank has in each step, and rank 0 prints: computed here, without any device."""
    word, lines = rank * 0x01010101, []
    for step in range(1, steps + 1):
        word = (word + step * (rank + 1)) & 0xFFFFFFFF
        whole = word.to_bytes(4, "little") * (1 << 20)
        lines.append(f"step {step} {hashlib.sha256(whole).hexdigest()[:16]}")
    return lines


def play(cluster: Cluster, node: str, **changes: object) -> None:
    """Change the simulated hardware of a node."""
    lines = [
        f"seed={NODES.index(node) + 1}",
        *(f"{name.replace('__', '.')}={value}" for name, value in changes.items()),
    ]
    text = "\\n".join(lines)
    cluster.root(
        node, f"printf '{text}\\n' >/run/simulated-gpu/new && mv /run/simulated-gpu/new /run/simulated-gpu/settings"
    )


@pytest.fixture
def gpus(cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Two GPUs in each node, those of one node with other UUIDs than those of the other."""
    place = cluster.home / "simulated"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for library in simulated.build(tmp_path).glob("*.so.1"):
        shutil.copy(library, place)
    for number, node in enumerate(NODES):
        done = cluster.root(node, INSTALL.format(home="/home/alice", seed=number + 1), check=False)
        if done.returncode:
            pytest.skip(f"no devices can be made here: {done.stderr.strip()}")
    # "auto" looks for the real driver.
    with settings(cluster, '[gpu]\nlock_timeout = "1s"\nlock_tries = 30\n[gate]\nenabled = "always"\n'):
        yield cluster
    for node in NODES:
        cluster.root(node, REMOVE)


def begin(cluster: Cluster, directory: Path, script: str = RANKS, *options: str) -> Job:
    """The cluster's Slurm manages no GPUs: the job says itself that it uses some."""
    own = ("--checkpoint-interval=infinite", "--ntasks=2", "--export=ALL,CUDA_VISIBLE_DEVICES=0")
    job = cluster.submit(script.format(steps=STEPS), *own, *options, directory=directory, held=True)
    job.wait_output("^step 10 ")
    return job


def steps_of(job: Job) -> list[str]:
    return [line for line in job.output().splitlines() if line.startswith("step ")]


def wait_progress(job: Job) -> None:
    """Wait until it has gone on for some steps, if it is not held already."""
    job.wait_output(f"^step {min(len(steps_of(job)) + 5, HELD_AT)} ")


def test_ranks_that_crash_come_back_with_their_gpu_state(gpus: Cluster, directory: Path) -> None:
    job = begin(gpus, directory)
    job.checkpoint()
    wait_progress(job)
    gpus.root(job.node(), "pkill -KILL -f '[g]pu_rank.py .* 2 1 '")
    assert finish(job) == "COMPLETED", job.output()
    assert steps_of(job) == values(STEPS)
    assert len(job.status()["attempts"]) == 1


def test_a_driver_that_cannot_do_it_is_named_and_the_job_runs_on(gpus: Cluster, directory: Path) -> None:
    for node in NODES:
        play(gpus, node, checkpoint__error="801*1")
    job = begin(gpus, directory)
    refused = gpus.run("slurmckpt", "checkpoint", job.name, check=False)
    assert refused.returncode != 0
    assert "its driver or program cannot be checkpointed (801)" in refused.stdout + refused.stderr
    # Nobody was left locked, and the next one goes through.
    wait_progress(job)
    for node in NODES:
        play(gpus, node)
    assert job.checkpoint() >= 1
    assert finish(job) == "COMPLETED", job.output()
    assert steps_of(job) == values(STEPS)


def test_gpus_that_cannot_take_the_state_are_a_cold_start_with_the_reason(gpus: Cluster, directory: Path) -> None:
    """The restored ranks run already when it turns out; none of their work, and nothing they print, is left."""
    job = begin(gpus, directory)
    job.checkpoint()
    other = next(node for node in NODES if node != job.node())
    play(gpus, other, restore__error=2)
    move(job, job.node())
    wait_for("the cold start", lambda: "cold start" in job.output())
    assert finish(job) == "COMPLETED", job.output()
    assert "its GPU has not enough free memory for it" in job.output(), events(job)
    assert steps_of(job)[-STEPS:] == values(STEPS)


@pytest.mark.long
def test_ranks_that_the_script_itself_has_started(gpus: Cluster, directory: Path) -> None:
    """As with torchrun: one pod, without an srun. Twice, as the second image is one of restored ranks."""
    script = 'for rank in 0 1; do python3 gpu_rank.py {steps} 2 $rank "$SLURM_JOB_ID" & done; wait; echo over'
    job = begin(gpus, directory, script)
    for attempt in (2, 3):
        seq = job.checkpoint()
        wait_progress(job)
        move(job, job.node())
        assert wait_for("the restore", lambda seq=seq: restored_from(job) == seq)  # type: ignore[misc]
        assert len(job.status()["attempts"]) == attempt
        wait_progress(job)
    assert finish(job) == "COMPLETED", job.output()
    assert steps_of(job) == values(STEPS)
    assert job.output().splitlines()[-1] == "over"


@pytest.mark.long
def test_gpu_memory_that_does_not_fit_into_the_jobs_limit(gpus: Cluster, directory: Path) -> None:
    """It would be copied into the job's memory, and the kernel would kill a rank for it."""
    script = "EXTRA_BYTES=400000000 srun -n1 python3 gpu_rank.py {steps} 1 0 $SLURM_JOB_ID"
    job = begin(gpus, directory, script, "--mem=300")
    refused = gpus.run("slurmckpt", "checkpoint", job.name, check=False)
    assert refused.returncode != 0
    assert "a checkpoint copies into the job's memory" in refused.stdout + refused.stderr
    assert "more with --mem" in refused.stdout + refused.stderr
    assert finish(job) == "COMPLETED", job.output()
    assert steps_of(job) == values(STEPS)


def order(cluster: Cluster, job: Job, place: str, text: str) -> None:
    """Let something happen at a place of slurmckpt.faults."""
    directory = "/run/slurmckpt-faults"
    cluster.root(
        job.node(), f"mkdir -p -m 755 {directory} && printf '%s' '{text}' >{directory}/{place}.{job.number} && sync"
    )


@pytest.fixture
def faults(gpus: Cluster) -> Iterator[Cluster]:
    yield gpus
    for node in NODES:
        gpus.root(node, "rm -rf /run/slurmckpt-faults")


def test_a_coordinator_that_dies_while_the_ranks_have_no_gpu(faults: Cluster, directory: Path) -> None:
    """The CUDA agent outlives it, and gives all ranks their GPUs back."""
    job = begin(faults, directory)
    order(faults, job, "capture.stopping", "kill")
    assert faults.run("slurmckpt", "checkpoint", job.name, check=False).returncode != 0
    assert finish(job) == "COMPLETED", job.output()
    assert steps_of(job) == values(STEPS)


@pytest.mark.parametrize("victim", ["-x criu", f"-f [g]pu_rank.py.{STEPS}.2.1."], ids=["criu", "rank"])
def test_who_else_dies_while_the_ranks_have_no_gpu(faults: Cluster, directory: Path, victim: str) -> None:
    """CRIU: all ranks get their GPUs back. A rank: so does the other one, and both go back to the last checkpoint."""
    job = begin(faults, directory)
    seq = job.checkpoint()
    order(faults, job, "capture.stopped", f"sh 1\npkill -KILL {victim}")
    assert faults.run("slurmckpt", "checkpoint", job.name, check=False).returncode != 0
    assert finish(job) == "COMPLETED", job.output()
    assert steps_of(job) == values(STEPS)
    assert any(f"restored in place from #{seq}" in text for text in events(job)) == ("rank" in victim)
    assert len(job.status()["attempts"]) == 1


@pytest.mark.long
def test_an_agent_that_dies_while_the_ranks_have_no_gpu(faults: Cluster, directory: Path) -> None:
    """The coordinator starts another one. This checkpoint is skipped, and the next one is taken."""
    job = begin(faults, directory)
    order(faults, job, "capture.stopping", "sh 1\npkill -KILL -f [c]uda.agent")
    skipped = faults.run("slurmckpt", "checkpoint", job.name, check=False)
    assert "the process that talks to the CUDA driver has died" in skipped.stdout + skipped.stderr
    assert job.checkpoint() >= 1
    assert finish(job) == "COMPLETED", job.output()
    assert steps_of(job) == values(STEPS)


def test_the_selftest_on_a_node(gpus: Cluster) -> None:
    done = gpus.run("slurmckpt", "selftest", "--gpu", user="root", node="n1")
    assert "GPU state can be captured" in done.stdout
    play(gpus, "n1", checkpoint__error=801)
    failed = gpus.run("slurmckpt", "selftest", "--gpu", user="root", node="n1", check=False)
    assert failed.returncode == 1 and "(801)" in failed.stdout
    again = gpus.run("slurmckpt", "selftest", "--gpu", "--once", user="root", node="n1", check=False)
    assert again.returncode == 1 and "(found since this node was booted)" in again.stdout
    doctor = gpus.run("slurmckpt", "doctor", user="root", node="n1", check=False)
    assert "selftest --gpu has failed since this node was booted" in doctor.stdout
    gpus.root("n1", "rm /run/slurmckpt/gpu-selftest.json")


TOLD = """
python3 gpu_told.py script {steps} &
srun -n2 sh -c 'echo nccl $NCCL_P2P_DISABLE; exec python3 gpu_told.py $SLURM_PROCID {steps}'
wait
"""


def test_two_gpu_ranks_survive_the_death_of_their_node(gpus: Cluster, directory: Path) -> None:
    """On other GPUs than before, which the driver is told. They also meet in NCCL, at its gate, and have connections to
    the batch script, which is a pod of its own; and they go on beside the checkpoint, too.
    """
    subprocess.run(["make", "-s", "-C", str(TREE / "tests/doubles/libnccl"), f"BUILD={directory}/build"], check=True)
    shutil.copy(directory / "build/libnccl.so.2", directory)
    job = begin(gpus, directory, TOLD)
    assert [(one["rank"], one["last"]) for one in ranks_of(job)] == [(0, "AllReduce"), (1, "AllReduce")]
    seq = job.checkpoint()
    wait_progress(job)
    node = job.node()
    gpus.verb("fail", node)
    try:
        assert restored_from(job) == seq
        assert finish(job) == "COMPLETED", job.output()
    finally:
        gpus.verb("start", node)
    both = zip(values(STEPS), values(STEPS, rank=1), strict=True)
    assert steps_of(job) == [
        f"{mine} {2.0**step * 1.5:g} {other.split()[-1]} {2.0**step * 1.5:g}"
        for step, (mine, other) in enumerate(both, start=1)
    ]
    # What a rank starts after the restore has no pid that something had before it.
    pids = [[int(word) for word in line.split()[1:]] for line in re.findall("(?m)^pids .*$", job.output())]
    script, *children = zip(*pids, strict=True)
    assert len(set(script)) == 1 and all(list(one) == sorted(set(one)) for one in children)
    assert len({*children[0], *children[1]}) == 2 * STEPS
    assert not events(job)
    output = job.output()
    assert "GPU profile sockets: driver 580.95.05, 2 GPUs: only sockets between ranks" in output
    assert "nccl 1" in output
