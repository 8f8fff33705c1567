"""A rank that crashes or hangs in a healthy allocation: all ranks go back to the last checkpoint, in place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster.harness import (
    DDP,
    STEPS,
    TRAIN,
    Cluster,
    Job,
    chain,
    events,
    finish,
    move,
    release,
    restored_from,
    settings,
    training_lines,
    wait_for,
)

MANUAL = "--checkpoint-interval=infinite"


def kill(job: Job, program: str, signal: str = "KILL") -> None:
    """Kill the newest rank on the job's node that runs this Python program, from outside of Slurm.

    A rank, not a stand-in for srun with the same words: after a restore in place it may well be the newer one.
    """
    rank = f"^(/usr/bin/)?python3 {program}"
    job.cluster.run("pkill", "-n", f"-{signal}", "-f", rank, user="root", node=job.node())


def wait_restored_in_place(job: Job, count: int = 1) -> list[str]:
    """Wait until so many restores in place have been made; what they were for."""

    def made() -> list[str] | None:
        found = [text for text in events(job) if "restored in place from" in text]
        return found if len(found) >= count else None

    return wait_for(lambda: f"{count} restores in place of job {job.number}: {events(job)}", made)


def wait_lines(files: list[Path], count: int) -> None:
    """Wait until each of these files has so many lines."""
    wait_for(
        f"{count} lines in {files}",
        lambda: all(file.exists() and len(file.read_text().splitlines()) >= count for file in files),
    )


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exec python3 chain.py 100 0.1 own.txt", "task 0 of step batch died of SIGKILL"),
        ("python3 chain.py 100 0.1 own.txt\nexit $?", "task 0 of step batch ended with exit code 137"),
    ],
    ids=["task", "in-script"],
)
def test_a_plain_program_that_is_killed(cluster: Cluster, directory: Path, script: str, why: str) -> None:
    job = cluster.submit(script, MANUAL, directory=directory, held=True)
    job.wait_output("^10 ")
    seq = job.checkpoint()
    job.wait_output("^25 ")
    kill(job, "chain.py 100")
    assert wait_restored_in_place(job) == [f"{why}: all ranks were restored in place from #{seq}"]
    assert finish(job) == "COMPLETED", job.output()
    assert job.output().splitlines() == chain(100)
    assert (directory / "own.txt").read_text().splitlines() == chain(100)
    assert len(job.status()["attempts"]) == 1
    assert job.info()["restart_cnt"] == 0


def test_a_rank_of_a_step_that_is_killed(cluster: Cluster, directory: Path) -> None:
    """Its output goes through pipes; the end of the dead rank's must not be seen by its shim."""
    job = cluster.submit(
        "srun -n2 --label python3 chain.py 100 0.1\necho end", MANUAL, "--ntasks=2", directory=directory, held=True
    )
    job.wait_output("^1: 10 ")
    seq = job.checkpoint()
    job.wait_output("^1: 25 ")
    kill(job, "chain.py 100", "SEGV")
    (found,) = wait_restored_in_place(job)
    assert re.fullmatch(rf"task [01] of step 0 died of SIGSEGV: all ranks were restored in place from #{seq}", found)
    assert finish(job) == "COMPLETED", job.output()
    expected = sorted([f"{rank}: {line}" for rank in (0, 1) for line in chain(100)] + ["end"])
    assert sorted(job.output().splitlines()) == expected


def test_a_ddp_rank_that_is_killed_again_and_again(cluster: Cluster, directory: Path, reference: list[str]) -> None:
    """Connections between the ranks come back although the kernel still knows the old ones."""
    job = cluster.submit(TRAIN.format(steps=STEPS), MANUAL, *DDP, directory=directory, held=True)
    for number in (1, 2):
        job.wait_output(f"^step {number * 40} ")
        job.checkpoint()
        job.wait_output(f"^step {number * 40 + 20} ")
        kill(job, "held_train.py")
        wait_restored_in_place(job, number)
    assert finish(job) == "COMPLETED", job.output()
    assert training_lines(job) == reference
    assert len(job.status()["attempts"]) == 1


def test_steps_side_by_side_go_back_together(cluster: Cluster, directory: Path) -> None:
    script = "srun -n1 --exact -o a.out python3 chain.py 120 0.1 a.txt &\nsrun -n1 --exact -o b.out python3 chain.py 121 0.1 b.txt &\nwait"
    job = cluster.submit(script, MANUAL, "--ntasks=2", directory=directory, held=True)
    both = [directory / "a.txt", directory / "b.txt"]
    wait_lines(both, 10)
    seq = job.checkpoint()
    wait_lines(both, 30)
    kill(job, "chain.py 121")
    (found,) = wait_restored_in_place(job)
    assert found.endswith(f"died of SIGKILL: all ranks were restored in place from #{seq}")
    assert finish(job) == "COMPLETED", job.output()
    for name, count in (("a", 120), ("b", 121)):
        assert (directory / f"{name}.out").read_text().splitlines() == chain(count)
        assert (directory / f"{name}.txt").read_text().splitlines() == chain(count)


def test_a_script_goes_back_beside_its_srun(cluster: Cluster, directory: Path) -> None:
    """After a requeue as well, when the image is of another incarnation. Each line of the script has run once."""
    job = cluster.submit(
        "echo preamble >>effects\nfor n in 1 2; do echo $n >>effects; srun -n1 python3 chain.py 10$n 0.1 >out.$n; done",
        MANUAL,
        directory=directory,
    )
    # Only then, as the first srun must end.
    wait_lines([directory / "out.2"], 1)
    (directory / "hold").touch()
    wait_lines([directory / "out.2"], 10)
    seq = job.checkpoint()
    wait_lines([directory / "out.2"], 25)
    kill(job, "chain.py 102")
    wait_restored_in_place(job)
    wait_lines([directory / "out.2"], 35)
    move(job, job.node())
    assert restored_from(job) == seq
    wait_lines([directory / "out.2"], 45)
    kill(job, "chain.py 102")
    assert wait_restored_in_place(job, 2)[-1].endswith(f"all ranks were restored in place from #{seq}")
    assert finish(job) == "COMPLETED", job.output()
    for number in (1, 2):
        assert (directory / f"out.{number}").read_text().splitlines() == chain(100 + number)
    assert (directory / "effects").read_text() == "preamble\n1\n2\n"
    assert len(job.status()["attempts"]) == 2


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("srun -n1 python3 chain.py 600 0.1 | cat", "the script handles input or output of step 0"),
        (
            "{ echo one; srun -n1 python3 chain.py 600 0.1; } >out.txt",
            "the script and step 0 write to the same file (descriptor 1 of srun)",
        ),
    ],
)
def test_what_a_script_shares_with_its_srun_is_told(cluster: Cluster, directory: Path, script: str, why: str) -> None:
    job = cluster.submit(f"set -o pipefail\n{script}", MANUAL, directory=directory, held=True)
    wait_for("the step", lambda: [step for step in job.status()["attempts"][-1:] if len(step["steps"]) > 1])
    wait_for(
        "a checkpoint", lambda: cluster.run("slurmckpt", "checkpoint", str(job.number), check=False).returncode == 0
    )
    kill(job, "chain.py 600")
    assert job.wait_end() == "FAILED", job.output()
    assert f"slurmckpt: task 0 of step 0 died of SIGKILL: not recovered: {why}" in job.output()


def test_the_same_crash_twice_is_the_programs_own(cluster: Cluster, directory: Path) -> None:
    job = cluster.submit("exec python3 faulty.py 100 0.1 40 SIGSEGV always", MANUAL, directory=directory, held=True)
    job.wait_output("^10 ")
    seq = job.checkpoint()
    assert finish(job) == "FAILED", job.output()
    assert job.info()["exit_code"]["signal"]["id"]["number"] == 11
    said = (
        f"task 0 of step batch died of SIGSEGV again after a restore from #{seq} in place:"
        " this is the program's own failure, and is not recovered from"
    )
    assert job.output().splitlines() == [*chain(100)[:41], f"slurmckpt: {said}"]
    assert events(job)[-1] == said


def test_a_crash_that_comes_back_once_is_overcome(cluster: Cluster, directory: Path) -> None:
    """A listed exit code is a crash, another one is not."""
    job = cluster.submit("exec python3 faulty.py 150 0.1 120 exit-139 once", MANUAL, directory=directory, held=True)
    job.wait_output("^10 ")
    job.checkpoint()
    other = cluster.submit("exec python3 faulty.py 150 0.1 120 exit-1 once", MANUAL, name="other", directory=directory)
    other.wait_output("^10 ")
    other.checkpoint()
    assert finish(job) == "COMPLETED", job.output()
    assert job.output().splitlines() == chain(150)
    assert other.wait_end() == "FAILED"
    assert other.info()["exit_code"]["return_code"]["number"] == 1
    assert other.output().splitlines() == chain(150)[:121]
    assert not any("restored in place" in text for text in events(other))


def test_the_loss_of_memory_is_not_recovered_from(cluster: Cluster, directory: Path) -> None:
    script = "srun -n1 python3 faulty.py 100 0.1 40 memory always\nexit $?"
    job = cluster.submit(script, MANUAL, "--mem=600", directory=directory, held=True)
    job.wait_output("^10 ")
    job.checkpoint()
    assert finish(job) in ("FAILED", "OUT_OF_MEMORY"), job.output()
    assert "slurmckpt: task 0 of step 0 died of SIGKILL: not recovered, as its step had no memory left" in job.output()
    assert job.output().count("\n40 ") == 1


@pytest.mark.parametrize(
    "words",
    [["{job}"], ["--full", "{job}"], ["{job}.0"], ["--signal=KILL", "{job}"], ["--signal=USR1", "{job}.0"]],
    ids=["job", "full", "step", "kill", "signal"],
)
def test_what_is_cancelled_stays_cancelled(cluster: Cluster, directory: Path, words: list[str]) -> None:
    """However many ranks die of it, and whatever the job's state is meanwhile."""
    job = cluster.submit("srun -n2 python3 chain.py 600 0.1", MANUAL, "--ntasks=2", directory=directory, held=True)
    job.wait_output("^10 ")
    job.checkpoint()
    cluster.run("scancel", *(word.format(job=job.number) for word in words))
    state = job.wait_end()
    assert state == ("CANCELLED" if not any(".0" in word for word in words) else state)
    assert not any("restored in place" in text for text in events(job))
    assert "restored" not in job.output()


def test_attempts_are_bounded(cluster: Cluster, directory: Path) -> None:
    with settings(cluster, "[recover]\nattempts = 1"):
        job = cluster.submit("exec python3 chain.py 600 0.1", MANUAL, directory=directory, held=True)
        for number in (1, 2):
            job.wait_output(f"^{number * 20} ")
            job.checkpoint()
            kill(job, "chain.py 600")
            if number == 1:
                wait_restored_in_place(job)
        assert job.wait_end() == "FAILED"
    said = (
        "task 0 of step batch died of SIGKILL: not recovered: recover.attempts = 1 allows no further restore in place"
    )
    assert job.output().splitlines()[-1] == f"slurmckpt: {said}"


def test_what_is_not_in_the_list_is_not_recovered(cluster: Cluster, directory: Path) -> None:
    job = cluster.submit(
        "exec python3 chain.py 600 0.1",
        MANUAL,
        "--checkpoint-recover=nodefail,hang",
        directory=directory,
        held=True,
    )
    job.wait_output("^10 ")
    job.checkpoint()
    kill(job, "chain.py 600")
    assert job.wait_end() == "FAILED"
    assert "slurmckpt" not in job.output()


def test_a_hang(cluster: Cluster, directory: Path) -> None:
    with settings(cluster, '[recover]\nhang_after = "10s"'):
        job = cluster.submit(
            "srun -n1 python3 faulty.py 60 0.1 40 hang once\necho end",
            MANUAL,
            "--checkpoint-recover=hang",
            directory=directory,
            held=True,
        )
        job.wait_output("^20 ")
        seq = job.checkpoint()
        release(job)
        (found,) = wait_restored_in_place(job)
        assert found == (
            f"the job has used no CPU time and printed nothing for 10 s: all ranks were restored in place from #{seq}"
        )
        assert job.wait_end() == "COMPLETED", job.output()
    assert job.output().splitlines() == [*chain(60), "end"]


def test_a_job_that_hangs_again_is_ended(cluster: Cluster, directory: Path) -> None:
    """And one that is suspended does not hang."""
    with settings(cluster, '[recover]\nhang_after = "10s"'):
        job = cluster.submit(
            "exec python3 faulty.py 60 0.1 40 hang always",
            MANUAL,
            "--checkpoint-recover=hang",
            directory=directory,
            held=True,
        )
        job.wait_output("^20 ")
        job.checkpoint()
        assert finish(job) == "FAILED", job.output()
    said = (
        "the job has used no CPU time and printed nothing for 10 s again after a restore from #1 in place:"
        " this is the program's own failure, and is not recovered from; its tasks are killed"
    )
    assert job.output().splitlines() == [*chain(60)[:41], f"slurmckpt: {said}"]
