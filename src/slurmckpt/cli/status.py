"""`slurmckpt status [JOB]`: what happened to a job and what it can go on from."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from slurmckpt import config
from slurmckpt.cli import find, jobview, overview
from slurmckpt.cli.control import ask
from slurmckpt.cli.jobid import JOB, JobName
from slurmckpt.config import Settings
from slurmckpt.errors import SlurmckptError
from slurmckpt.store.layout import JobStore
from slurmckpt.store.record import Record, read


@click.command("status")
@click.argument("job", metavar="[JOB]", required=False, type=JOB)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with every field; a list for several jobs.")
@click.option(
    "--checkpoint-dir",
    "directory",
    type=find.STORE,
    help="Store of a job that was submitted with this option.",
)
def command(job: JobName | None, as_json: bool, directory: Path | None) -> None:
    """Show attempts, steps and checkpoints of JOB, or a line for each of your jobs.

    JOB is a job's id, 12_3 for a task of an array, or an array's id for all its tasks.

    For each attempt (each start of the job): where it ran, which checkpoint it was restored from, or why it started
    cold, that is from the beginning although it has run before.

    In the line of a job: the number of its last attempt, with the checkpoint that was restored or `cold`; how many
    checkpoints are kept, what they take in the store, and when the last of them was taken.
    """
    settings = config.load()
    root = directory or settings.store.path
    if job is None:
        _show_all(root, [(store, read(store)) for store in find.stores(root)], as_json)
        return
    stores = find.stores_of(root, job)
    if not stores:
        raise find.unknown(root, job)
    found = [(read(store), _kept(store), _live(settings, store.job.job_id)) for store in stores]
    if as_json:
        documents = [_document(record, kept, live) for record, kept, live in found]
        click.echo(json.dumps(documents[0] if len(documents) == 1 else documents, indent=1))
        return
    for record, kept, live in found:
        jobview.show(record, kept, live)


def _kept(store: JobStore) -> set[int]:
    """The checkpoints that are in the store now; none when it cannot be read (root on root_squash storage)."""
    try:
        return set(store.sequence_numbers())
    except SlurmckptError:
        return set()


def _live(settings: Settings, job_id: int) -> dict[str, Any] | None:
    """What the coordinator says, when it runs on this very node."""
    try:
        return ask(settings, job_id, "status", 2.0)
    except SlurmckptError:
        return None


def _document(record: Record, valid: set[int], live: dict[str, Any] | None) -> dict[str, Any]:
    document = asdict(record)
    kept = {id(note) for note in record.kept(valid)}
    for note, checkpoint in zip(record.checkpoints, document["checkpoints"], strict=True):
        checkpoint["kept"] = id(note) in kept
    document["coordinator"] = live
    return document


def _show_all(root: Path, found: list[tuple[JobStore, Record]], as_json: bool) -> None:
    known = overview.ask() if found else overview.Known()
    if as_json:
        documents = [
            _document(record, _kept(store), None) | {"state": overview.state_of(record, known)}
            for store, record in found
        ]
        click.echo(json.dumps(documents, indent=1))
        return
    if not found:
        click.echo(f"no job{'' if os.getuid() == 0 else ' of yours'} has had checkpoints in {root} yet")
        return
    overview.show([(record, _kept(store)) for store, record in found], known, with_user=os.getuid() == 0)
