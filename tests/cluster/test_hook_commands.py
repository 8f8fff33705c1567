"""Hook commands run in the job, as its user, around checkpoints and after a restore, and leave nothing behind."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.harness import Cluster, events, move, restored_from, settings

SCRIPT = """
export FLAVOUR='of the script'
mkdir -p work
exec env -C work sh -c 'echo begins; while [ ! -e end ]; do sleep 0.1; done; echo ends'
"""
# What it finds around it; a ranks' process; and something that would outlive it.
PRE = (
    "echo $(id -un) in ${PWD##*/} $SLURM_CKPT_HOOK of $SLURM_CKPT_SEQ; echo $SLURM_JOB_ID >../seen;"
    " ps -o comm= -C leader; (setsid sleep 4321 &) 2>/dev/null"
)
POST = "echo $SLURM_CKPT_RESULT; ps -eo args= | grep -c '[s]leep 4321'"


def test_commands_around_a_checkpoint_and_after_a_restore(cluster: Cluster, directory: Path) -> None:
    """Of the site and of the job; in the job's output, and not in the image."""
    with settings(cluster, '[hooks]\npost_restore = "echo site"'):
        job = cluster.submit(
            SCRIPT,
            "--checkpoint-interval=infinite",
            f"--checkpoint-pre={PRE}",
            f"--checkpoint-post={POST}",
            "--checkpoint-restored=hostname >../restored; echo job",
            directory=directory,
        )
        job.wait_output("^begins$")
        job.checkpoint()
        # Lines of ours go by way of the task's shim, and may come later than the answer.
        job.wait_output("^slurmckpt: the post-checkpoint command ")
        lines = job.output().splitlines()
        before = job.node()
        move(job, before)
        restored_from(job)
        job.wait_output("^slurmckpt: post-restore: job$")
        (directory / "work/end").touch()
        assert job.wait_end() == "COMPLETED", job.output()
    # grep finds nothing, so the last command of the pipe fails: told once.
    told = f"the post-checkpoint command {POST!r} ended with status 1"
    assert lines == [
        "begins",
        "slurmckpt: pre-checkpoint: alice in work pre-checkpoint of 1",
        "slurmckpt: pre-checkpoint: leader",
        "slurmckpt: post-checkpoint: captured",
        "slurmckpt: post-checkpoint: 0",
        f"slurmckpt: {told}",
    ]
    assert (directory / "seen").read_text() == f"{job.number}\n"
    assert job.output().splitlines()[-3:] == [
        "slurmckpt: post-restore: site",
        "slurmckpt: post-restore: job",
        "ends",
    ]
    assert (directory / "restored").exists()
    assert events(job) == [told]


def test_a_command_that_says_no_or_hangs_costs_the_checkpoint_and_nothing_else(
    cluster: Cluster, directory: Path
) -> None:
    """The reason is told, the job runs on, and what hung is gone."""
    with settings(cluster, '[hooks]\ntimeout = "8s"'):
        job = cluster.submit(
            "echo begins; while [ ! -e end ]; do sleep 0.1; done",
            "--checkpoint-interval=infinite",
            "--checkpoint-pre=if [ -e hang ]; then sleep 5432 & wait; fi; test -e yes",
            "--checkpoint-post=echo $SLURM_CKPT_RESULT >>results",
            directory=directory,
        )
        job.wait_output("^begins$")

        def refusal() -> str:
            return cluster.run("slurmckpt", "checkpoint", job.name, check=False).stderr

        assert "ended with status 1" in refusal()
        (directory / "hang").touch()
        assert "did not end within 8.0 s (hooks.timeout) and was killed" in refusal()
        assert cluster.root(job.node(), "pgrep -fc 'sleep 543[2]'", check=False).stdout == "0\n"
        (directory / "hang").unlink()
        (directory / "yes").touch()
        job.checkpoint()
        (directory / "end").touch()
        assert job.wait_end() == "COMPLETED", job.output()
    assert (directory / "results").read_text().split() == ["skipped", "skipped", "captured"]
    assert (
        len(re.findall("^slurmckpt: checkpoint skipped: the pre-checkpoint command ", job.output(), re.MULTILINE)) == 2
    )
