"""Jobs and steps that are not checkpointed: they run as ever, and one line says why, once."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.harness import Cluster, wait_for

INFINITE = "--checkpoint-interval=infinite"
ONLY_BATCH = "slurmckpt: no checkpoints for this job: only batch jobs (sbatch) can be requeued and restored"


def ours(text: str) -> list[str]:
    """Our lines, without the name of Slurm's command that comes before some of them."""
    return [line[line.index("slurmckpt: ") :] for line in text.splitlines() if "slurmckpt: " in line]


def test_a_heterogeneous_job(cluster: Cluster, directory: Path) -> None:
    """Said by sbatch, and once in the job's output: not for each component, and not for each step."""
    wanted = "slurmckpt: no checkpoints for this job: heterogeneous jobs are not supported yet"
    script = directory / "het.sh"
    script.write_text(
        "#!/bin/bash\nsrun --het-group=0,1 sh -c 'echo $SLURM_JOB_ID $SLURM_PROCID'\n"
        "srun --het-group=1 echo second\nsrun echo first\n"
    )
    done = cluster.run(
        "sbatch",
        "--parsable",
        f"--chdir=/home/alice/{directory.name}",
        "--output=het.out",
        INFINITE,
        "-n1",
        ":",
        "-n1",
        f"/home/alice/{directory.name}/het.sh",
    )
    assert ours(done.stderr) == [wanted]
    number = int(done.stdout)
    output = directory / "het.out"
    wait_for("its end", lambda: output.exists() and output.read_text().endswith("first\n"))
    lines = output.read_text().splitlines()
    assert ours(output.read_text()) == [wanted]
    assert sorted(line for line in lines if "slurmckpt" not in line) == sorted(
        [f"{number} 0", f"{number} 1", "second", "first"]
    )
    refused = cluster.run("slurmckpt", "status", str(number), check=False)
    assert "no record of job" in refused.stderr


def test_a_job_that_did_not_ask(cluster: Cluster, directory: Path) -> None:
    """Its user is told so in one line, to which srun, by which the question came to the node, adds none."""
    job = cluster.submit("until [ -e go ]; do sleep 0.1; done", directory=directory)
    wait_for("its start", lambda: job.state() == "RUNNING")
    for node in ("login", job.node()):
        done = cluster.run("slurmckpt", "checkpoint", job.name, node=node, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "Error: it runs without checkpoints: none were asked for when it was submitted (--checkpoint-interval), or its"
            " output says why there are none\n"
        )
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED"
    assert job.output() == ""


def test_a_job_on_several_nodes(cluster: Cluster, directory: Path) -> None:
    """Said once in its output, and not by each of its nodes."""
    job = cluster.submit(
        "srun hostname\nslurmckpt checkpoint $SLURM_JOB_ID || true", INFINITE, "-N2", directory=directory
    )
    assert job.wait_end() == "COMPLETED"
    wanted = "no checkpoints for this job: jobs on several nodes are not supported yet, and this one has 2"
    assert sorted(job.output().splitlines()) == sorted([f"slurmckpt: {wanted}", f"Error: {wanted}", "n1", "n2"])


def test_salloc(cluster: Cluster) -> None:
    """Said by salloc, and by none of its steps."""
    steps = "srun -n1 echo one; srun -n2 echo two; slurmckpt checkpoint $SLURM_JOB_ID"
    done = cluster.run("salloc", "-n2", INFINITE, "sh", "-c", steps, check=False)
    assert done.stdout.splitlines() == ["one", "two", "two"]
    assert ours(done.stderr) == [ONLY_BATCH]
    assert "Error: no checkpoints for this job: only batch jobs can be requeued and restored" in done.stderr


def test_srun_with_a_job_of_its_own(cluster: Cluster) -> None:
    """As it is, and with a terminal."""
    done = cluster.run("srun", INFINITE, "-n2", "echo", "one")
    assert done.stdout.splitlines() == ["one", "one"]
    assert ours(done.stderr) == [ONLY_BATCH]
    terminal = f"import pty, sys; sys.exit(pty.spawn(['srun', '--pty', '{INFINITE}', 'sh', '-c', 'tty; exit 3']) >> 8)"
    done = cluster.run("python3", "-c", terminal, check=False)
    assert done.returncode == 3
    assert ours(done.stdout) == [ONLY_BATCH]
    assert "/dev/pts/" in done.stdout


def test_steps_with_a_terminal_in_a_batch_job(cluster: Cluster, directory: Path) -> None:
    """The first says it for all; the steps beside them are checkpointed."""
    (directory / "terminal.py").write_text("import pty\npty.spawn(['srun', '--overlap', '--pty', 'tty'])\n")
    script = "srun --overlap python3 chain.py 100 0.1 >chain.out &\n" + "python3 terminal.py\n" * 2
    script += "wait\nuntil [ -e go ]; do sleep 0.1; done\necho end"
    job = cluster.submit(script, INFINITE, "-n1", directory=directory)
    wait_for("two terminals", lambda: job.output().count("/dev/pts/") == 2)
    chain = directory / "chain.out"
    wait_for("the other step", lambda: chain.exists() and "\n5 " in chain.read_text())
    job.checkpoint()
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    assert ours(job.output()) == ["slurmckpt: no checkpoints for steps with a terminal (srun --pty)"]
    assert job.output().splitlines()[-1] == "end"
