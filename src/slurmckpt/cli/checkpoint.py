"""`slurmckpt checkpoint JOB`: take a group checkpoint now."""

from __future__ import annotations

import asyncio
import os
import shutil

import click

from slurmckpt import config
from slurmckpt.cli.control import NoCoordinator, ask
from slurmckpt.cli.jobid import JOB_ID
from slurmckpt.errors import SlurmckptError
from slurmckpt.slurm.select import select
from slurmckpt.units import format_bytes, format_seconds


@click.command("checkpoint")
@click.argument("job_id", metavar="JOB", type=JOB_ID)
@click.option("--here", is_flag=True, hidden=True, help="The job runs on this node; do not look for it elsewhere.")
def command(job_id: int, here: bool) -> None:
    """Take a group checkpoint of JOB now, and wait until it is committed.

    Works from any host of the cluster, for the job's user: on another host than the job's node it runs itself there as
    a step of the job.
    """
    settings = config.load()
    try:
        answer = ask(settings, job_id, "checkpoint", None)
    except NoCoordinator:
        if here:
            raise
        _on_its_node(job_id)
        return
    size, frozen = format_bytes(answer["bytes"]), format_seconds(answer["freeze_seconds"])
    click.echo(f"job {job_id}: checkpoint #{answer['checkpoint']} committed, {size}, frozen for {frozen}")


def _on_its_node(job_id: int) -> None:
    """Replace this process by an srun on the job's node: Slurm itself makes sure of who asks."""
    job = asyncio.run(select().job(job_id))
    if "RUNNING" not in job.state or not job.nodes:
        raise SlurmckptError(f"job {job_id} is not running (state {' '.join(sorted(job.state))})")
    srun = shutil.which("srun")
    if srun is None:
        raise SlurmckptError("srun is not on PATH; it is needed to reach the job's node")
    words = [
        f"--jobid={job_id}",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={job.nodes[0]}",
        "--mem=0",
        "--quiet",
    ]
    command = [srun, *words, "--checkpoint-interval=off", "slurmckpt", "checkpoint", "--here", str(job_id)]
    os.execv(srun, command)
