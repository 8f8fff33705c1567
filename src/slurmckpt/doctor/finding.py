"""What a check says: a verdict, one line, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slurmckpt.errors import one_line

Verdict = Literal["ok", "warning", "problem", "skipped"]


@dataclass(frozen=True)
class Finding:
    """problem: no checkpoints, no restores, or a danger. warning: they work, and something is likely not meant so.

    skipped: it does not apply to this host or cannot be seen from here; the text says why. remedy: what to do, for a
    warning or a problem.
    """

    verdict: Verdict
    text: str
    remedy: str = ""


def ok(text: str) -> Finding:
    """All is well; text: what was found."""
    return Finding("ok", one_line(text))


def warning(text: str, remedy: str) -> Finding:
    """It works, but probably not as intended."""
    return Finding("warning", one_line(text), one_line(remedy))


def problem(text: str, remedy: str) -> Finding:
    """It does not work, or is dangerous."""
    return Finding("problem", one_line(text), one_line(remedy))


def skipped(why: str) -> Finding:
    """Not looked at."""
    return Finding("skipped", one_line(why))
