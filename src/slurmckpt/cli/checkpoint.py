"""`slurmckpt checkpoint JOB`: take a group checkpoint now."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import subprocess
import sys
from typing import Any

import click

from slurmckpt import config
from slurmckpt.cli.control import NoCoordinator, ask
from slurmckpt.cli.jobid import JOB, JobName
from slurmckpt.config import Settings
from slurmckpt.errors import SlurmckptError, SlurmError
from slurmckpt.slurm.ownnode import own_name
from slurmckpt.slurm.port import JobInfo
from slurmckpt.slurm.select import select
from slurmckpt.units import format_bytes, format_seconds

_UNSERVED = (
    "it runs without checkpoints: none were asked for when it was submitted (--checkpoint-interval), or its output says"
    " why there are none"
)


@click.command("checkpoint")
@click.argument("job", metavar="JOB", type=JOB)
@click.option("--here", type=int, hidden=True, help="JOB's raw id: it runs on this node; ask nobody else.")
def command(job: JobName, here: int | None) -> None:
    """Take a group checkpoint of JOB now, and wait until it is committed.

    JOB is a job's id, 12_3 for a task of an array, or an array's id for each of its tasks that runs.

    In the job itself it only asks for one, as it would be captured, too; `slurmckpt status` shows the result.

    Works from any host of the cluster, for the job's user: on another host than the job's node it runs itself there as
    a step of the job. For root it works on the job's node.
    """
    settings = config.load()
    if here is not None:
        click.echo(json.dumps(_answer(settings, here)))
        return
    try:
        chosen = _choose(job, asyncio.run(select().array(job.number)))
    except SlurmError as error:
        # On the job's own node nobody else is needed.
        try:
            _say(str(job), ask(settings, job.number, "checkpoint", None))
        except NoCoordinator:
            raise error from None
        return
    _check_owner(chosen)
    failed = 0
    for each in chosen:
        try:
            _take(settings, each)
        except SlurmckptError as error:
            click.echo(f"Error: {error}" if len(chosen) == 1 else f"Error: job {_name(each)}: {error}", err=True)
            failed += 1
    if failed:
        sys.exit(1)


def _choose(job: JobName, found: list[JobInfo]) -> list[JobInfo]:
    """Those that are meant and run. Raises SlurmckptError when none does."""
    # The raw id of one task is also that of its array: who names it means the array, as for scontrol.
    array = any(each.array_id == job.number for each in found)
    meant = [
        each
        for each in found
        if (each.array_task == job.task if job.task is not None else not array or each.array_id == job.number)
    ]
    if not meant:
        raise SlurmckptError(f"Slurm knows no job {job}")
    running = [each for each in meant if "RUNNING" in each.state and each.nodes]
    if not running:
        states = ", ".join(sorted({" ".join(sorted(each.state)) for each in meant}))
        raise SlurmckptError(f"job {job} is not running (state {states})")
    return running


def _check_owner(jobs: list[JobInfo]) -> None:
    owner = jobs[0].user_id
    if os.getuid() in (0, owner):
        return
    raise SlurmckptError(f"job {_name(jobs[0])} belongs to {_user_name(owner)}; only root and its owner may do that")


def _name(job: JobInfo) -> str:
    return job.array or str(job.job_id)


def _answer(settings: Settings, job_id: int) -> dict[str, Any]:
    """What the coordinator on this node says, for the command that has come here by an srun. Raises nothing of ours:
    srun adds a line of its own to a task that fails."""
    try:
        return ask(settings, job_id, "checkpoint", None)
    except NoCoordinator:
        return {"error": _UNSERVED}
    except SlurmckptError as error:
        return {"error": str(error)}


def _take(settings: Settings, job: JobInfo) -> None:
    """Take a checkpoint of this job. Raises SlurmckptError."""
    try:
        answer = ask(settings, job.job_id, "checkpoint", None)
    except NoCoordinator:
        if _is_here(job):
            raise SlurmckptError(_UNSERVED) from None
        if os.getuid() == 0 != job.user_id:
            owner = _user_name(job.user_id)
            raise SlurmckptError(
                f"root can ask for it on node {job.nodes[0]} only: Slurm starts no step of root's in a job of {owner}"
            ) from None
        answer = _from_its_node(job)
    if "error" in answer:
        raise SlurmckptError(str(answer["error"]))
    _say(_name(job), answer)


def _is_here(job: JobInfo) -> bool:
    """Whether this host is the job's node, as far as Slurm tells."""
    try:
        return asyncio.run(own_name(select())) == job.nodes[0]
    except SlurmError:
        return False


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user id {uid}"


def _say(shown: str, answer: dict[str, Any]) -> None:
    if "requested" in answer:
        click.echo(f"job {shown}: checkpoint requested; it is taken when this command has ended")
        return
    size, frozen = format_bytes(answer["bytes"]), format_seconds(answer["freeze_seconds"])
    click.echo(f"job {shown}: checkpoint #{answer['checkpoint']} committed, {size}, frozen for {frozen}")


def _from_its_node(job: JobInfo) -> dict[str, Any]:
    """Ask by an srun on the job's node: Slurm itself makes sure of who asks. Raises SlurmckptError."""
    srun = shutil.which("srun")
    if srun is None:
        raise SlurmckptError("srun is not on PATH; it is needed to reach the job's node")
    words = [
        f"--jobid={job.job_id}",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={job.nodes[0]}",
        "--mem=0",
        "--quiet",
        "--input=none",
        "--checkpoint-interval=off",
    ]
    command = [srun, *words, "slurmckpt", "checkpoint", "--here", str(job.job_id), _name(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    try:
        answer = json.loads(done.stdout)
        if done.returncode == 0 and isinstance(answer, dict):
            return answer
    except ValueError:
        pass  # srun, or what it could not start, has said why
    raise SlurmckptError(f"node {job.nodes[0]} gave no answer (srun ended with status {done.returncode})")
