"""`slurmckpt status [JOB]`: what happened to a job and what it can go on from."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slurmckpt import config
from slurmckpt.cli import find, overview, ranks, steps
from slurmckpt.cli.control import ask
from slurmckpt.cli.jobid import JOB, JobName
from slurmckpt.config import Settings
from slurmckpt.errors import SlurmckptError
from slurmckpt.store.layout import JobStore
from slurmckpt.store.record import Attempt, Record, SkippedNote, read
from slurmckpt.units import format_bytes, format_seconds


@click.command("status")
@click.argument("job", metavar="[JOB]", required=False, type=JOB)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with every field; a list for several jobs.")
@click.option(
    "--checkpoint-dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Store of a job that was submitted with this option.",
)
def command(job: JobName | None, as_json: bool, directory: Path | None) -> None:
    """Show attempts, steps and checkpoints of JOB, or a line for each of your jobs.

    JOB is a job's id, 12_3 for a task of an array, or an array's id for all its tasks.

    For each attempt: where it ran, which checkpoint it was restored from, or why it started cold.
    """
    settings = config.load()
    root = directory or settings.store.path
    if job is None:
        _show_all([(store, read(store)) for store in find.stores(root)], as_json)
        return
    stores = find.stores_of(root, job)
    if not stores:
        raise SlurmckptError(
            f"no record of job {job} in {root} (that you may read); did it run with --checkpoint-interval?"
        )
    found = [(read(store), _kept(store), _live(settings, store.job.job_id)) for store in stores]
    if as_json:
        documents = [_document(record, kept, live) for record, kept, live in found]
        click.echo(json.dumps(documents[0] if len(documents) == 1 else documents, indent=1))
        return
    for record, kept, live in found:
        _show(record, kept, live)


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
    for checkpoint in document["checkpoints"]:
        checkpoint["kept"] = checkpoint["seq"] in valid
    document["coordinator"] = live
    return document


def _name(record: Record) -> str:
    """As Slurm's commands call it, and its raw id when that is another."""
    return f"{record.array} ({record.job_id})" if record.array else str(record.job_id)


def _show(record: Record, valid: set[int], live: dict[str, Any] | None) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]job {escape(_name(record))}[/] of {escape(record.user)} on cluster {escape(record.cluster)}")
    if live is not None:
        console.print(f"interval {live['interval']}; coordinator on {escape(str(live['node']))} is running")
    attempts = _table("attempt", "node", "started", "ended", "began", "steps")
    for attempt in record.attempts:
        ended = (
            f"{_time(attempt.ended)} {escape(attempt.outcome or '')}"
            if attempt.ended
            else escape(attempt.outcome or "-")
        )
        attempts.add_row(
            str(attempt.epoch),
            escape(attempt.node),
            _time(attempt.started),
            ended,
            escape(_began(attempt)),
            escape(steps.summary(attempt.steps)),
        )
    console.print(attempts)
    if record.checkpoints:
        checkpoints = _table("checkpoint", "taken", "node", "steps", "size", "stored", "frozen", "kept")
        for note in record.checkpoints:
            checkpoints.add_row(
                f"#{note.seq}",
                _time(note.time),
                escape(note.node),
                escape(", ".join(note.steps)),
                format_bytes(note.bytes),
                format_bytes(note.stored_bytes),
                format_seconds(note.freeze_seconds),
                "yes" if note.seq in valid else "no",
            )
        console.print(checkpoints)
    else:
        console.print("no checkpoint yet")
    if record.skipped is not None:
        console.print(escape(_skipped(record.skipped)))
    if live is not None:
        ranks.show(console, live)
    for event in record.events[-10:]:
        console.print(f"{_time(event.time)}  {escape(event.text)}")


def _show_all(found: list[tuple[JobStore, Record]], as_json: bool) -> None:
    states = overview.slurm_states() if found else {}
    if as_json:
        documents = [
            _document(record, _kept(store), None) | {"state": overview.state_of(record, states)}
            for store, record in found
        ]
        click.echo(json.dumps(documents, indent=1))
        return
    counted = [(record, len(_kept(store))) for store, record in found]
    overview.show(_table(), counted, states, with_user=os.getuid() == 0)


def _began(attempt: Attempt) -> str:
    """How an attempt began: afresh, from a checkpoint, or cold with its reason."""
    if attempt.restored_from is not None:
        text = f"restored from #{attempt.restored_from}"
        if attempt.restored_seconds is not None:
            text += f" in {format_seconds(attempt.restored_seconds)}"
        if attempt.lost_seconds is not None:
            text += f", {format_seconds(attempt.lost_seconds)} of work repeated"
        refused = f"; refused {'; '.join(attempt.refused)}" if attempt.refused else ""
        return text + refused
    if attempt.cold_start is not None:
        return f"cold start: {attempt.cold_start}"
    return "from the beginning"


def _skipped(note: SkippedNote) -> str:
    """Why there are no checkpoints now, and how long that has been so."""
    if note.times == 1:
        return f"the last checkpoint was skipped at {_time(note.last)}: {note.reason}"
    return (
        f"checkpoints are skipped since {_time(note.since)}, {note.times} by now, the last at {_time(note.last)}:"
        f" {note.reason}"
    )


def _time(seconds: float | None) -> str:
    try:
        return datetime.fromtimestamp(seconds).strftime("%m-%d %H:%M:%S") if seconds else "-"
    except (ValueError, OverflowError, OSError):
        return "?"  # the record is the user's, and may hold any number


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table
