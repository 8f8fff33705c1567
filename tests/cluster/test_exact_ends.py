"""Exit statuses, signals and output are what they would be without us."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Job, wait_for

ENDS = {
    "exit-7": "exit 7",
    "kill-term": "kill -TERM $$; sleep 60",
    "kill-segv": "kill -SEGV $$; sleep 60",
    "no-such-program": "exec /no/such/program",
    "srun-exit-9": "srun sh -c 'exit 9'",
    "srun-killed": "srun sh -c 'kill -KILL $$'",
    "srun-second-task-fails": "srun -n2 sh -c 'exit $((SLURM_PROCID * 5))'",
    "srun-no-such-program": "srun no-such-program",
    "srun-labels": "srun -n2 --label sh -c 'echo to stdout; echo to stderr >&2'",
    "srun-stdin": "printf 'a\\nb\\n' | srun -n1 cat",
    "srun-captured": "x=$(srun -n2 echo word); echo got $x",
    "limits": "ulimit -a; umask; srun sh -c 'ulimit -a; umask'",
    "own-handler": "trap 'echo caught; exit 3' TERM; kill -TERM $$",
    "nohup": "nohup echo survives 2>/dev/null; trap '' USR1; srun sh -c 'kill -USR1 $$; echo still here'",
    "background": "sleep 0.3 & wait; (sleep 100 &) ; echo done",
    "jobs-in-pipes": "seq 1000 | srun -n1 sort -n | tail -1",
}


def end_of(job: Job) -> tuple[str, object, object, str]:
    """Slurm's state, the batch script's exit code, the derived one, and the output, with what differs from run to run made equal."""
    state = job.wait_end()
    info = job.info()
    output = job.output().replace(f"JobId={job.number}", "JobId=N").replace(f"StepId={job.number}", "StepId=N")
    output = output.replace(f"job{job.number:05d}", "jobN")
    # slurmstepd itself puts the time before its lines, or its name, or its name and the node's: that depends on its
    # log settings and its release.
    output = re.sub(r"^(?:\[[-0-9T:.]+\]|slurmstepd(?:-n\d)?:) error: ", "error: ", output, flags=re.MULTILINE)
    # scancel and srun sign what they end with the time and the step.
    output = re.sub(r"\*\*\* (JOB|STEP) [\d.]+ ON n\d CANCELLED AT \S+", r"*** \1 CANCELLED", output)
    # srun puts tasks into one line that end at about the same time.
    output = re.sub(
        r"^(srun: error: n\d): tasks 0-1: (.*)$", r"\1: task 0: \2\n\1: task 1: \2", output, flags=re.MULTILINE
    )
    return state, info["exit_code"], info["derived_exit_code"], "\n".join(sorted(output.splitlines()))


@pytest.mark.parametrize("case", ENDS)
def test_a_job_ends_as_it_would_without_us(cluster: Cluster, directory: Path, case: str) -> None:
    """The same script, once with checkpoints and once without."""
    options = ("--ntasks=2",)
    plain = cluster.submit(ENDS[case], *options, name="job", directory=directory)
    wrapped = cluster.submit(ENDS[case], "--checkpoint-interval=10m", *options, name="job", directory=directory)
    assert end_of(wrapped) == end_of(plain)
    assert wrapped.status()["attempts"], "it did not run under a coordinator"


@pytest.mark.parametrize("signal", ["TERM", "USR1", "USR2", "HUP", "CONT"])
def test_a_signal_reaches_each_rank_exactly_once(cluster: Cluster, directory: Path, signal: str) -> None:
    """scancel -s to the step of two tasks."""
    script = f"""srun -n2 bash -c 'n=0; trap "n=\\$((n+1)); echo got {signal} >>hits.$SLURM_PROCID" {signal}
echo ready >>ready; while [ ! -e stop ]; do sleep 0.1; done; exit 0'"""
    job = cluster.submit(script, "--checkpoint-interval=10m", "--ntasks=2", directory=directory)
    wait_for(
        "both ranks ready",
        lambda: (directory / "ready").exists() and (directory / "ready").read_text() == "ready\n" * 2,
    )
    cluster.run("scancel", "-s", signal, f"{job.number}.0")
    hits = [directory / f"hits.{rank}" for rank in (0, 1)]
    wait_for("the signal", lambda: all(hit.exists() for hit in hits))
    (directory / "stop").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    assert [hit.read_text() for hit in hits] == [f"got {signal}\n"] * 2


def test_a_checkpoint_does_not_disturb_the_output(cluster: Cluster, directory: Path) -> None:
    """Twenty checkpoints while two tasks print as fast as they can."""
    script = "srun -n2 sh -c 'for i in $(seq 20000); do echo $SLURM_PROCID $i; done'"
    plain = cluster.submit(script, "--ntasks=2", directory=directory)
    wrapped = cluster.submit(script, "--ntasks=2", "--checkpoint-interval=1s", directory=directory)
    for job in (plain, wrapped):
        assert job.wait_end() == "COMPLETED"
        lines = job.output().splitlines()
        for rank in "01":
            assert [line for line in lines if line.startswith(rank)] == [f"{rank} {i}" for i in range(1, 20001)]
