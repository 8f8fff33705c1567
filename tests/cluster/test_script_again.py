"""Where the batch script cannot be captured its steps are, and it runs again from its top: said once, and exact all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, chain, finish, move, restored_from

MANUAL = "--checkpoint-interval=infinite"
# A process of the script that no image can hold.
HELD = 'unshare --user sleep 1000 & until [ "$(cat /proc/$!/comm)" = sleep ]; do sleep 0.1; done\n'
NOT_CAPTURED = "slurmckpt: the batch script is not captured and will run again from its top: process "


def split(output: str) -> tuple[list[str], list[str]]:
    """What slurmckpt said, and what the job printed."""
    lines = output.splitlines()
    return [line for line in lines if line.startswith("slurmckpt: ")], [
        line for line in lines if not line.startswith("slurmckpt: ")
    ]


def test_steps_that_had_ended_run_again_and_the_running_one_goes_on(cluster: Cluster, directory: Path) -> None:
    """As at any requeue; the job's output is exact all the same."""
    script = (
        HELD
        + "srun sh -c 'echo first >>effects; echo one'\nsrun python3 chain.py 100 0.1\nx=$(srun echo three)\necho $x"
    )
    job = cluster.submit(script, MANUAL, directory=directory, held=True)
    job.wait_output("^20 ")
    seq = job.checkpoint()
    line = job.wait_output(f"^{NOT_CAPTURED}.*")[0]
    assert "(sleep) is in another user namespace than the pod" in line
    move(job, job.node())
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    assert (directory / "effects").read_text() == "first\nfirst\n"
    assert split(job.output())[1] == ["one", *chain(100), "three"]


def test_a_step_whose_output_the_script_reads_runs_again(cluster: Cluster, directory: Path) -> None:
    """Restoring it beside a script that starts anew would give the script half of its output."""
    script = HELD + "n=$(srun python3 chain.py 60 0.1 | wc -l); echo $n"
    job = cluster.submit(script, "--checkpoint-interval=2s", directory=directory, held=True)
    job.wait_output(
        "^slurmckpt: checkpoint skipped: the batch script cannot be captured: process .* user namespace .*, and the script"
        " handles output or input of step 0$"
    )
    move(job, job.node())
    line = job.wait_output("^slurmckpt: cold start: .*")[0]
    assert line == "slurmckpt: cold start: no checkpoint had been taken"
    assert finish(job) == "COMPLETED", job.output()
    assert split(job.output())[1] == ["60"]


@pytest.mark.parametrize("change", ["another command", "another order"])
def test_a_changed_script_is_noticed(cluster: Cluster, directory: Path, change: str) -> None:
    """Steps are matched by order and command line; the difference is named."""
    (directory / "count").write_text("40")
    (directory / "first").write_text("")
    script = HELD + "[ -s first ] && srun echo early\nsrun python3 chain.py $(cat count) 0.1"
    job = cluster.submit(script, MANUAL, directory=directory, held=True)
    job.wait_output("^20 ")
    seq = job.checkpoint()
    if change == "another command":
        (directory / "count").write_text("41")
        wanted = f"#{seq}: step 0 is 'python3 chain.py 41 0.1' now, and was 'python3 chain.py 40 0.1'"
    else:
        (directory / "first").write_text("x")
        wanted = f"#{seq}: step 0 is 'echo early' now, and was 'python3 chain.py 40 0.1'"
    move(job, job.node())
    assert job.wait_output("^slurmckpt: cold start: .*")[0] == f"slurmckpt: cold start: no checkpoint fits: {wanted}"
    assert finish(job) == "COMPLETED", job.output()
    printed = split(job.output())[1]
    assert printed == (chain(41) if change == "another command" else ["early", *chain(40)])
