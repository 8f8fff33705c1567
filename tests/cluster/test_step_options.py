"""What srun can be told: each option does with checkpoints what it does without, also after a restore.

Left out is `--input=FILE.%t`, with which srun itself never ends (seen with Slurm 26.05 without slurmckpt).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Job, chain, finish, move, restored_from, wait_for
from tests.cluster.test_exact_ends import end_of

FILES = {
    "prolog": "#!/bin/sh\necho export FROM_PROLOG=yes\necho unset LEFT_OUT\necho print prolog of $SLURM_PROCID\n",
    "epilog": "#!/bin/sh\necho epilog of $SLURM_PROCID >>ended.$SLURM_PROCID\n",
    "multi.conf": "0 sh -c 'echo first %t'\n1 sh -c 'echo second %o; exit 3' %o\n",
    "in.1": "one\n",
}
SHOW = "sh -c 'echo $SLURM_PROCID to stdout; echo $SLURM_PROCID to stderr >&2'"
CASES = {
    "task-prolog": "export LEFT_OUT=1; srun -n2 --task-prolog=$PWD/prolog --task-epilog=$PWD/epilog"
    " sh -c 'echo $FROM_PROLOG ${LEFT_OUT:-left out}'",
    "export-none": "export MINE=1; srun --export=NONE sh -c 'echo ${MINE:-none}'; srun --export=MINE sh -c 'echo $MINE'",
    "chdir": "srun -n2 --chdir=/usr pwd; srun --chdir=/no/such/directory pwd",
    "propagate": "ulimit -n 300; ulimit -c 0; srun --propagate=NOFILE sh -c 'ulimit -n'; srun --propagate=NONE sh -c 'ulimit -c'",
    "output-per-task": f"srun -n2 --output=out.%t --error=err.%t {SHOW}; cat out.* err.*",
    "output-one-file": f"srun -n2 --output=out.%j.%s {SHOW}; cat out.*; srun -n2 --output=both --error=both {SHOW}; cat both",
    "output-none": f"srun -n2 --output=none {SHOW}; srun -n2 --output=none --error=none {SHOW}",
    "output-one-task": f"srun -n2 --output=1 {SHOW}; srun -n2 --error=0 {SHOW}",
    "output-append": f"echo kept >both; srun -n2 --output=both --open-mode=append {SHOW}; cat both",
    "input-one-file": "srun -n2 --input=in.1 cat",
    "input-one-task": "echo typed | srun -n2 --input=1 sh -c 'read x; echo $SLURM_PROCID got $x'",
    "input-none": "echo typed | srun -n2 --input=none cat; echo end",
    "unbuffered": f"srun -n2 --unbuffered --label {SHOW}; srun --unbuffered printf 'no newline'",
    "multi-prog": "srun -n2 --multi-prog multi.conf",
    "kill-on-bad-exit": "srun -n2 --kill-on-bad-exit sh -c 'test $SLURM_PROCID = 0 || exit 4; sleep 100'",
    "steps-at-once": "for i in 1 2 3; do srun -n2 --overlap sh -c 'sleep 0.5; echo step $SLURM_PROCID' & done; wait",
}


def prepare(directory: Path) -> None:
    """The files that the options name."""
    for name, content in FILES.items():
        (directory / name).write_text(content)
        (directory / name).chmod(0o755)


@pytest.mark.parametrize("case", CASES)
def test_an_option_does_what_it_does_without_us(cluster: Cluster, directory: Path, case: str) -> None:
    """Output, statuses and the files that the tasks leave."""
    ends, left = [], []
    for kind, options in (("plain", []), ("wrapped", ["--checkpoint-interval=10m"])):
        own = cluster.directory(f"{directory.name}-{kind}")
        prepare(own)
        job = cluster.submit(CASES[case], "--ntasks=2", *options, name="job", directory=own)
        state, code, derived, output = end_of(job)
        ends.append((state, code, derived, sorted(output.replace(own.name, "D").splitlines())))
        left.append({path.name: path.read_text() for path in own.glob("ended.*")})
        assert bool(job.status()["attempts"]) == (kind == "wrapped")
    assert ends[1] == ends[0]
    assert left[1] == left[0] and bool(left[0]) == (case == "task-prolog")


def moved_in_the_middle(cluster: Cluster, directory: Path, script: str, outputs: Sequence[str]) -> Job:
    """A job that was requeued to the other node some seconds after its checkpoint, and has ended well.

    outputs: files in the directory that are to have 20 lines before the checkpoint and 40 before the requeue.
    """
    job = cluster.submit(script, "--checkpoint-interval=infinite", "--ntasks=2", directory=directory, held=True)
    paths = [job.output_path if name == "job" else directory / name for name in outputs]
    wait_lines(paths, 20)
    seq = job.checkpoint()
    wait_lines(paths, 40)
    move(job, job.node())
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    return job


def wait_lines(paths: Sequence[Path], count: int) -> None:
    """Wait until each of these files has so many lines."""

    def enough() -> bool:
        return all(path.exists() and path.read_bytes().count(b"\n") >= count for path in paths)

    wait_for(f"{count} lines in {', '.join(path.name for path in paths)}", enough)


@pytest.mark.parametrize(
    ("options", "outputs"),
    [
        ("--output=out.%t", ["out.0", "out.1"]),
        ("--output=out.%t --open-mode=append", ["out.0", "out.1"]),
        ("--task-prolog=$PWD/prolog --export=NONE --chdir=$PWD --output=out.%t", ["out.0", "out.1"]),
        ("--input=in.1 --output=out.%t", ["out.0", "out.1"]),
    ],
    ids=["per task", "append", "prolog", "input"],
)
def test_output_files_of_each_task_are_exact(
    cluster: Cluster, directory: Path, options: str, outputs: list[str]
) -> None:
    """slurmstepd opens them anew, and truncates them, at the restore."""
    prepare(directory)
    moved_in_the_middle(cluster, directory, f"srun -n2 {options} $(which python3) chain.py 120 0.1", outputs)
    for rank, name in enumerate(outputs):
        first = [f"prolog of {rank}"] if "prolog" in options else []
        assert (directory / name).read_text().splitlines() == first + chain(120)


@pytest.mark.parametrize("options", ["", "--label"])
def test_what_a_task_prolog_prints_is_there_once(cluster: Cluster, directory: Path, options: str) -> None:
    """slurmstepd runs it again at the restore, and prints its line into the task's output again."""
    prepare(directory)
    script = f"srun -n2 --task-prolog=$PWD/prolog {options} python3 chain.py 120 0.1"
    job = moved_in_the_middle(cluster, directory, script, ["job"])
    wanted = [(f"{rank}: " if options else "") + line for rank in (0, 1) for line in [f"prolog of {rank}", *chain(120)]]
    assert sorted(job.output().splitlines()) == sorted(wanted)


def test_an_unbuffered_step_is_not_captured(cluster: Cluster, directory: Path) -> None:
    """slurmstepd gives its tasks a terminal. They run on, and the reason is said."""
    script = "srun -n2 --unbuffered python3 chain.py 60 0.1"
    job = cluster.submit(script, "--checkpoint-interval=2s", "--ntasks=2", directory=directory, held=True)
    line = job.wait_output("^slurmckpt: checkpoint skipped: .*")[0]
    assert "uses the terminal /dev/pts/" in line and "--unbuffered" in line
    assert finish(job) == "COMPLETED", job.output()
    lines = [text.rstrip("\r") for text in job.output().splitlines() if not text.startswith("slurmckpt: ")]
    assert sorted(lines) == sorted(chain(60) * 2)


def test_the_output_of_one_task_only(cluster: Cluster, directory: Path) -> None:
    """`--output=1`: the other task writes to nowhere."""
    job = moved_in_the_middle(cluster, directory, "srun -n2 --output=1 python3 chain.py 120 0.1 own.txt", ["job"])
    assert job.output().splitlines() == chain(120)


def test_a_step_of_different_programs(cluster: Cluster, directory: Path) -> None:
    """`--multi-prog`, and each goes on where it was."""
    (directory / "multi.conf").write_text("0 python3 chain.py 120 0.1 own.0\n1 python3 chain.py 150 0.1 own.1\n")
    script = "srun -n2 --multi-prog --output=out.%t multi.conf"
    moved_in_the_middle(cluster, directory, script, ["out.0", "out.1"])
    for name, count in (("out.0", 120), ("out.1", 150)):
        assert (directory / name).read_text().splitlines() == chain(count)
    assert (directory / "own.1").read_text().splitlines() == chain(150)


def test_a_changed_program_of_another_task_is_noticed(cluster: Cluster, directory: Path) -> None:
    """The first task's command is the same; a restored step would run the old one of the second."""
    multi = directory / "multi.conf"
    multi.write_text("0 python3 chain.py 150 0.1\n1 sleep 300\n")
    job = cluster.submit(
        "srun -n2 --multi-prog --output=out.%t multi.conf",
        "--checkpoint-interval=infinite",
        "--ntasks=2",
        directory=directory,
        held=True,
    )
    wait_lines([directory / "out.0"], 20)
    job.checkpoint()
    multi.write_text("0 python3 chain.py 150 0.1\n1 true\n")
    move(job, job.node())
    # Whether the line goes to the script or to the step depends on what was captured.
    reason = wait_for("the cold start", lambda: job.status()["attempts"][-1]["cold_start"])
    assert reason.startswith("no checkpoint fits: #1: step 0")
    assert finish(job) == "COMPLETED", job.output()


def test_two_steps_at_once(cluster: Cluster, directory: Path) -> None:
    """Each of two tasks, with --overlap, so that all four share the job's CPUs."""
    script = """rm -f a.*
srun -n2 --overlap --output=a.%t python3 chain.py 120 0.1 &
until [ -s a.1 ]; do sleep 0.1; done
srun -n2 --overlap --output=b.%t python3 chain.py 130 0.1 &
wait"""
    outputs = ["a.0", "a.1", "b.0", "b.1"]
    moved_in_the_middle(cluster, directory, script, outputs)
    for name in outputs:
        assert (directory / name).read_text().splitlines() == chain(120 if name[0] == "a" else 130)
