"""`slurmckpt status` without a job: a line for each job, short enough for a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.markup import escape

from slurmckpt.cli.console import console, table
from slurmckpt.cli.jobview import time_of
from slurmckpt.errors import SlurmError
from slurmckpt.slurm.select import select
from slurmckpt.store.record import Record
from slurmckpt.units import format_bytes

_MAX_NAME = 16


@dataclass(frozen=True)
class Known:
    """What Slurm says: the name of its cluster, and the state of each job that it knows, by raw id.

    Both are empty when it cannot be asked. The jobs of another cluster may lie in the same store, with the same ids.
    """

    cluster: str = ""
    states: Mapping[int, str] = field(default_factory=dict)

    def state(self, record: Record) -> str | None:
        """The job's state; None when Slurm does not know it."""
        return self.states.get(record.job_id) if record.cluster == self.cluster else None


def ask() -> Known:
    """Ask Slurm. Raises nothing."""
    try:
        return asyncio.run(_ask())
    except SlurmError:
        return Known()


async def _ask() -> Known:
    port = select()
    cluster = (await port.config()).get("ClusterName", "")
    return Known(cluster, {line.job_id: line.state for line in await port.job_lines()})


def state_of(record: Record, known: Known) -> str:
    """The job's state for Slurm; of a job that Slurm has forgotten, how it ended when that was written down."""
    state = known.state(record)
    if state:
        return state
    return (record.attempts[-1].outcome or "-") if record.attempts else "-"


def show(found: list[tuple[Record, set[int]]], known: Known, with_user: bool) -> None:
    """Print the table. found: each record with its checkpoints that are kept."""
    lines = table("job", *(["user"] if with_user else []), "name", "state", "node", "attempt", "kept", "stored", "last")
    for record, kept in sorted(found, key=lambda each: _order(each[0])):
        last = record.attempts[-1] if record.attempts else None
        notes = record.kept(kept)
        lines.add_row(
            escape(record.array or str(record.job_id)),
            *([escape(record.user)] if with_user else []),
            escape(_short(record.name) or "-"),
            escape(state_of(record, known)),
            escape(last.node) if last else "-",
            _attempt(record),
            str(len(kept)),
            format_bytes(sum(note.stored_bytes for note in notes)) if notes else "-",
            _minute(notes[-1].time) if notes else "-",
        )
    console().print(lines)


def _order(record: Record) -> tuple[int, int]:
    """By number, and the tasks of an array one after the other, although their raw ids are not."""
    array, _, task = record.array.partition("_")
    if array.isdecimal() and task.isdecimal() and len(record.array) < 25:
        return int(array), int(task)
    return record.job_id, 0


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"


def _attempt(record: Record) -> str:
    """Which is its last, and how that began where it is not the first: the reason is in the job's own status."""
    last = record.attempts[-1] if record.attempts else None
    number = str(len(record.attempts))
    if last is None:
        return "-"
    if last.restored_from is not None:
        return f"{number} from #{last.restored_from}"
    return f"{number} cold" if last.cold_start is not None else number


def _minute(seconds: float) -> str:
    """A moment without its seconds, which nobody looks for in a list."""
    text = time_of(seconds)
    return text.rpartition(":")[0] or text
