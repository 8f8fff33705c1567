"""`slurmckpt status JOB`: everything that is known of one job, as text."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.markup import escape

from slurmckpt.cli import ranks, steps
from slurmckpt.cli.console import console, table
from slurmckpt.store.record import Attempt, CheckpointNote, Record, SkippedNote
from slurmckpt.units import format_bytes, format_seconds, parse_interval

# A job of weeks has a thousand notes of checkpoints; those that it could go on from are shown in any case.
_CHECKPOINTS = 10
_EVENTS = 10
# What somebody has chosen is mostly a round number: `10m`, not `10m 00s`, and `8 s`, not `8.0 s`.
_ROUND = re.compile(r"( 00[hms])+$|\.0(?= s$)")


def show(record: Record, kept: set[int], live: dict[str, Any] | None) -> None:
    """Print it. kept: the checkpoints that are in the store now. live: the coordinator's answer, on the job's node."""
    terminal = console()
    title = f"[bold]job {escape(_number(record))}[/] of {escape(record.user)} on cluster {escape(record.cluster)}"
    name = f" ({escape(record.name)})" if record.name else ""
    every = f", {escape(_interval(record.interval))}" if record.interval else ""
    terminal.print(title + name + every)
    for attempt in record.attempts:
        terminal.print("")
        for line in _attempt(attempt):
            terminal.print(escape(line))
    terminal.print("")
    over = bool(record.attempts) and record.attempts[-1].ended is not None
    if record.checkpoints:
        _show_checkpoints(terminal, record.checkpoints, record.kept(kept))
        if record.removed:
            terminal.print(f"the checkpoints were removed {escape(record.removed)}")
    else:
        terminal.print("no checkpoint was taken" if over else "no checkpoint yet")
    if record.skipped is not None:
        terminal.print(escape(_skipped(record.skipped, over)))
    if live is not None:
        ranks.show(terminal, live)
    for event in record.events[-_EVENTS:]:
        terminal.print(f"{time_of(event.time)}  {escape(event.text)}")


def time_of(seconds: float | None) -> str:
    """A moment, in local time; `?` for a number that is none: the record is the user's."""
    try:
        return datetime.fromtimestamp(seconds).strftime("%m-%d %H:%M:%S") if seconds else "-"
    except (ValueError, OverflowError, OSError):
        return "?"


def _number(record: Record) -> str:
    """As Slurm's commands call it, and its raw id when that is another."""
    return f"{record.array} ({record.job_id})" if record.array else str(record.job_id)


def _interval(text: str) -> str:
    try:
        interval = parse_interval(text)
    except ValueError:
        return text
    if interval.seconds is not None:
        return f"a checkpoint every {_ROUND.sub('', format_seconds(interval.seconds))}"
    return {
        "auto": "a checkpoint as often as pays (auto)",
        "manual": "checkpoints only on request",
        "off": "no checkpoints",
    }[interval.kind]


def _attempt(attempt: Attempt) -> list[str]:
    when = f"since {time_of(attempt.started)}"
    if attempt.ended or attempt.outcome:
        ended = time_of(attempt.ended) if attempt.ended else "an unknown time"
        when = f"{time_of(attempt.started)} to {ended}: {attempt.outcome or 'ended'}"
    notes = sorted(attempt.steps, key=lambda note: note.step != "batch")
    lines = [f"attempt {attempt.epoch} on {attempt.node}, {when}", f"  {began(attempt)}"]
    lines += [f"  refused {refused}" for refused in attempt.refused if attempt.restored_from is not None]
    return lines + ([f"  {steps.summary(notes)}"] if notes else [])


def began(attempt: Attempt) -> str:
    """How an attempt began: afresh, from a checkpoint, or cold with its reason."""
    if attempt.restored_from is not None:
        took = f" in {format_seconds(attempt.restored_seconds)}" if attempt.restored_seconds is not None else ""
        again = f", {format_seconds(attempt.lost_seconds)} of work repeated" if attempt.lost_seconds is not None else ""
        return f"restored from #{attempt.restored_from}{took}{again}"
    if attempt.cold_start is not None:
        return f"cold start, from the beginning: {attempt.cold_start}"
    return "from the beginning"


def _show_checkpoints(terminal: Console, notes: list[CheckpointNote], kept: list[CheckpointNote]) -> None:
    there = {id(note) for note in kept}
    shown = [note for note in notes[:-_CHECKPOINTS] if id(note) in there] + notes[-_CHECKPOINTS:]
    found = table("checkpoint", "taken", "node", "steps", "size", "stored", "frozen", "kept")
    for note in shown:
        found.add_row(
            f"#{note.seq}",
            time_of(note.time),
            escape(note.node),
            escape(", ".join(note.steps)),
            format_bytes(note.bytes),
            format_bytes(note.stored_bytes),
            format_seconds(note.freeze_seconds),
            "yes" if id(note) in there else "no",
        )
    terminal.print(found)
    if len(shown) < len(notes):
        terminal.print(f"and {len(notes) - len(shown)} before them, which are not kept (--json has them)")
    terminal.print("")


def _skipped(note: SkippedNote, over: bool) -> str:
    """Why there are no checkpoints now, and how long that has been so. over: the job has ended meanwhile."""
    if note.times == 1:
        return f"the last checkpoint was skipped at {time_of(note.last)}: {note.reason}"
    since, last = time_of(note.since), time_of(note.last)
    if over:
        return f"checkpoints were skipped from {since} to {last}, {note.times} of them: {note.reason}"
    return f"checkpoints are skipped since {since}, {note.times} by now, the last at {last}: {note.reason}"
