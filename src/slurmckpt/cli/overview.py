"""`slurmckpt status` without a job: a line for each job, short enough for a terminal."""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slurmckpt.errors import SlurmError
from slurmckpt.slurm.select import select
from slurmckpt.store.record import Attempt, Record

_MAX_NAME = 20


def slurm_states() -> dict[int, str]:
    """The state of each job that Slurm knows, by raw id; empty when Slurm cannot be asked."""
    try:
        return {line.job_id: line.state for line in asyncio.run(select().job_lines())}
    except SlurmError:
        return {}


def state_of(record: Record, states: dict[int, str]) -> str:
    """The job's state for Slurm; of a job that Slurm has forgotten, how it ended when that was written down."""
    known = states.get(record.job_id)
    if known:
        return known
    return (record.attempts[-1].outcome or "-") if record.attempts else "-"


def show(table: Table, found: list[tuple[Record, int]], states: dict[int, str], with_user: bool) -> None:
    """Print the table. found: each record with the number of its checkpoints that are kept."""
    headings = ["job", *(["user"] if with_user else []), "name", "state", "node", "attempts", "kept", "began"]
    for heading in headings:
        table.add_column(heading, no_wrap=heading != "began")
    for record, kept in found:
        last = record.attempts[-1] if record.attempts else None
        table.add_row(
            escape(record.array or str(record.job_id)),
            *([escape(record.user)] if with_user else []),
            escape(_short(record.name) or "-"),
            escape(state_of(record, states)),
            escape(last.node) if last else "-",
            str(len(record.attempts)),
            str(kept),
            _began(last) if last else "-",
        )
    Console(highlight=False, soft_wrap=True).print(table)


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"


def _began(attempt: Attempt) -> str:
    """How its last attempt began, in two words: the reason is in the job's own status."""
    if attempt.restored_from is not None:
        return f"restored #{attempt.restored_from}"
    return "cold start" if attempt.cold_start is not None else "beginning"
