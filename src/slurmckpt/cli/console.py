"""The terminal as all verbs write to it."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

# More than any line has.
_WIDTH = 100_000


def console() -> Console:
    """Standard output. What it prints is text: no `:M:` in it becomes a picture, no number is coloured.

    Nothing is broken, cut off or left out because a terminal, or a pipe, is narrow. Markup is ours alone: whatever
    users, nodes or Slurm have written goes through rich.markup.escape().
    """
    return Console(highlight=False, soft_wrap=True, emoji=False, width=_WIDTH)


def table(*columns: str) -> Table:
    """A table with these headings, two blanks apart: as much as can be should fit 80 columns."""
    return Table(*columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
