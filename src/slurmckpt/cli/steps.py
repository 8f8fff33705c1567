"""The steps of an attempt in few words: a script may start very many, one after the other."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurmckpt.store.record import StepNote

# As Slurm numbers steps, with room; the record is the user's, and int() refuses what is very long.
_NUMBER = re.compile(r"[0-9]{1,10}")


def summary(notes: Sequence[StepNote]) -> str:
    """`batch: running, 0-76: ended (0)`: steps that follow each other and have ended alike are one entry."""
    entries: list[tuple[str, str, str]] = []
    for note in notes:
        state = note.state + _status(note.status)
        if entries and entries[-1][2] == state and _follows(entries[-1][1], note.step):
            entries[-1] = (entries[-1][0], note.step, state)
        else:
            entries.append((note.step, note.step, state))
    return ", ".join(f"{first if first == last else f'{first}-{last}'}: {state}" for first, last, state in entries)


def _follows(before: str, name: str) -> bool:
    return _NUMBER.fullmatch(before) is not None and name == str(int(before) + 1)


def _status(status: int | None) -> str:
    if status is None:
        return ""
    return f" (signal {status & 0x7F})" if status & 0x7F else f" ({status >> 8})"
