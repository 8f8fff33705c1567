"""`slurmckpt status [JOB]`: what happened to a job and what it can go on from."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator
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
from slurmckpt.cli.control import ask
from slurmckpt.cli.jobid import JOB_ID
from slurmckpt.config import Settings
from slurmckpt.errors import SlurmckptError
from slurmckpt.identity import JobIdentity
from slurmckpt.store.layout import JobStore
from slurmckpt.store.record import Attempt, Record, read
from slurmckpt.units import format_bytes, format_seconds


@click.command("status")
@click.argument("job_id", metavar="[JOB]", required=False, type=JOB_ID)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable, with every field.")
@click.option(
    "--checkpoint-dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Store of a job that was submitted with this option.",
)
def command(job_id: int | None, as_json: bool, directory: Path | None) -> None:
    """Show attempts, steps and checkpoints of JOB, or a line for each of your jobs.

    For each attempt: where it ran, which checkpoint it was restored from, or why it started cold.
    """
    settings = config.load()
    root = directory or settings.store.path
    stores = list(_stores(root, job_id))
    if job_id is None:
        _show_all([(store, read(store)) for store in stores], as_json)
        return
    if not stores:
        raise SlurmckptError(
            f"no record of job {job_id} in {root} (that you may read); did it run with --checkpoint-interval?"
        )
    records = [read(store) for store in stores]
    live = _live(settings, job_id)
    for store, record in zip(stores, records, strict=True):
        valid = _kept(store)
        if as_json:
            click.echo(json.dumps(_document(record, valid, live), indent=1))
        else:
            _show(record, valid, live)


def _stores(root: Path, job_id: int | None) -> Iterator[JobStore]:
    """The job directories below the store's root that this user may read, oldest job first."""
    pattern = f"*/{'*' if os.getuid() == 0 or job_id else _own_name()}/{job_id or '*'}"
    found = []
    for path in root.glob(pattern):
        try:
            if path.name.isascii() and path.name.isdigit() and path.is_dir() and os.access(path, os.R_OK):
                owner = path.stat()
                job = JobIdentity(path.parts[-3], path.parts[-2], owner.st_uid, owner.st_gid, int(path.name))
                found.append(JobStore(root, job))
        except (OSError, ValueError):
            continue
    yield from sorted(found, key=lambda store: store.job.job_id)


def _kept(store: JobStore) -> set[int]:
    """The checkpoints that are in the store now; none when it cannot be read (root on root_squash storage)."""
    try:
        return set(store.sequence_numbers())
    except SlurmckptError:
        return set()


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        raise SlurmckptError(f"user id {os.getuid()} has no account on this host; name the job") from error


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


def _show(record: Record, valid: set[int], live: dict[str, Any] | None) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]job {record.job_id}[/] of {escape(record.user)} on cluster {escape(record.cluster)}")
    if live is not None:
        console.print(f"interval {live['interval']}; coordinator on {escape(str(live['node']))} is running")
    attempts = _table("attempt", "node", "started", "ended", "began", "steps")
    for attempt in record.attempts:
        ended = (
            f"{_time(attempt.ended)} {escape(attempt.outcome or '')}"
            if attempt.ended
            else escape(attempt.outcome or "-")
        )
        steps = ", ".join(f"{step.step}: {step.state}{_status(step.status)}" for step in attempt.steps)
        attempts.add_row(
            str(attempt.epoch),
            escape(attempt.node),
            _time(attempt.started),
            ended,
            escape(_began(attempt)),
            escape(steps),
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
    for event in record.events[-10:]:
        console.print(f"{_time(event.time)}  {escape(event.text)}")


def _show_all(found: list[tuple[JobStore, Record]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([_document(record, _kept(store), None) for store, record in found], indent=1))
        return
    table = _table("job", "user", "attempts", "last node", "checkpoints kept", "last attempt began")
    for store, record in found:
        last = record.attempts[-1] if record.attempts else None
        table.add_row(
            str(record.job_id),
            escape(record.user),
            str(len(record.attempts)),
            escape(last.node) if last else "-",
            str(len(_kept(store))),
            escape(_began(last)) if last else "-",
        )
    Console(highlight=False, soft_wrap=True).print(table)


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


def _status(status: int | None) -> str:
    if status is None:
        return ""
    return f" (signal {status & 0x7F})" if status & 0x7F else f" ({status >> 8})"


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
