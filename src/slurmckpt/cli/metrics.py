"""`slurmckpt metrics`: the store and its jobs in numbers, for Prometheus.

The text format is that of https://prometheus.io/docs/instrumenting/exposition_formats/. What is counted comes from the
records, which belong to users: it is for graphs and alerts, and decides nothing.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from slurmckpt import config
from slurmckpt.cli import find, overview
from slurmckpt.errors import SlurmckptError
from slurmckpt.store.record import Record, read

# Not the outcome in the record: any text may stand there.
_FORGOTTEN = "forgotten"

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Family:
    """One metric: each set of labels with its number."""

    name: str
    help: str
    values: Mapping[Labels, float]


@dataclass(frozen=True)
class Job:
    """A job in the store. state: of Slurm, `forgotten` when it does not know the job. kept: its checkpoints there."""

    record: Record
    state: str
    kept: frozenset[int]


@click.command("metrics")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write FILE anew, all at once, instead of printing.",
)
@click.option(
    "--checkpoint-dir", "directory", type=find.STORE, help="Store of jobs that were submitted with this option."
)
def command(output: Path | None, directory: Path | None) -> None:
    """Print what is in the store, and how jobs fare, as metrics for Prometheus.

    Run it as root on one host that has the store mounted, every few minutes, with --output in the directory of
    node_exporter's textfile collector. Without root it counts your own jobs only.
    """
    root = directory or config.load().store.path
    known = overview.ask()
    jobs = []
    for store in find.stores(root):
        try:
            kept = frozenset(store.sequence_numbers())
        except SlurmckptError:
            continue  # gone meanwhile, or closed to us
        record = read(store)
        if not known.cluster or record.cluster == known.cluster:
            jobs.append(Job(record, known.state(record) or _FORGOTTEN, kept))
    text = "".join(_lines([*_room(root), *families(jobs), _now()]))
    if output is None:
        click.echo(text, nl=False)
    else:
        _replace(output, text)


def families(jobs: Sequence[Job]) -> list[Family]:
    """What the jobs amount to, by user."""
    counts: Counter[Labels] = Counter()
    kept: Counter[Labels] = Counter()
    stored: Counter[Labels] = Counter()
    skipping: Counter[Labels] = Counter()
    attempts: Counter[Labels] = Counter()
    last: dict[Labels, float] = {}
    for job in jobs:
        record = job.record
        user = _labels(record)
        counts[_labels(record, state=job.state)] += 1
        notes = record.kept(job.kept)
        kept[user] += len(job.kept)
        stored[user] += sum(max(0, note.stored_bytes) for note in notes)
        for attempt in record.attempts:
            attempts[_labels(record, began=_began(attempt.restored_from, attempt.cold_start))] += 1
        if job.state == "RUNNING":
            skipping[user] += record.skipped is not None
            if notes:
                last[_labels(record, job=record.array or str(record.job_id))] = notes[-1].time
    return [
        Family("slurmckpt_jobs", "Jobs with a record in the store, by their state in Slurm.", counts),
        Family("slurmckpt_checkpoints", "Checkpoints that are kept.", kept),
        Family("slurmckpt_stored_bytes", "What they take in the store.", stored),
        Family("slurmckpt_jobs_skipping", "Running jobs whose last checkpoint was skipped.", skipping),
        Family("slurmckpt_attempts", "Starts of the jobs with a record: afresh, restored, or cold.", attempts),
        Family("slurmckpt_last_checkpoint_timestamp_seconds", "When a running job was last captured.", last),
    ]


def _labels(record: Record, **more: str) -> Labels:
    return (("user", record.user), *more.items())


def _began(restored_from: int | None, cold_start: str | None) -> str:
    if restored_from is not None:
        return "restored"
    return "cold" if cold_start is not None else "afresh"


def _room(root: Path) -> list[Family]:
    try:
        room = os.statvfs(root)
    except OSError as error:
        raise SlurmckptError(f"store {root} cannot be looked at: {error.strerror}") from error
    return [
        Family("slurmckpt_store_size_bytes", "The store's file system.", {(): room.f_blocks * room.f_frsize}),
        Family("slurmckpt_store_free_bytes", "What users can still put there.", {(): room.f_bavail * room.f_frsize}),
    ]


def _now() -> Family:
    return Family("slurmckpt_metrics_timestamp_seconds", "When these numbers were taken.", {(): round(time.time())})


def _lines(found: Sequence[Family]) -> Iterator[str]:
    for family in found:
        yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} gauge\n"
        for labels, value in sorted(family.values.items()):
            inner = ",".join(f'{name}="{_escape(text)}"' for name, text in labels)
            number = int(value) if value == int(value) else value
            yield f"{family.name}{f'{{{inner}}}' if inner else ''} {number}\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _replace(path: Path, text: str) -> None:
    """Write it whole, or not at all: whoever collects it may look at any moment."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise SlurmckptError(f"{path} cannot be written: {error.strerror}") from error
