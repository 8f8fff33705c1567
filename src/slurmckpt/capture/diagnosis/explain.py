"""Finds the error of a CRIU log that says most, and the process that it is about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurmckpt.capture.diagnosis.tables import COMMON, CONSEQUENCE, DUMP, HARMLESS, MOMENT, RESTORE, Table
from slurmckpt.errors import one_line

LOG_TAIL = 256 * 1024
_QUOTED = 300

# `(00.012345)   100: Error (criu/files.c:93): text`: time and, at a restore, pid of the task come first (CRIU's log.c).
_LINE = re.compile(
    r"^(?:\(\d+\.\d+\))?\s*(?:pie:)?\s*(?:(?P<pid>\d+):)?\s*"
    r"(?:Error \([^()\n]*:\d+\): (?P<error>.*)|Dumping task \(pid: (?P<begun>\d+) comm: (?P<comm>.*)\))$",
    re.MULTILINE,
)
# What follows the errors of one task of a dump.
_OF_TASK = re.compile(r"\(pid: (\d+)\) failed")


@dataclass(frozen=True)
class _Error:
    """pid: inside the pod, of the process that it is about; 0 when that is not known."""

    text: str
    pid: int


def explain_dump(log_text: str, names: Mapping[int, str] | None = None) -> str:
    """Why a dump failed, with the way out: one sentence. An error that is not known is quoted.

    names: what processes are called, by their pid inside the pod (`process 104 (python3) of rank 1`). Of a long log the
    last 256 KiB are read. Empty when the log tells of no error.
    """
    return _explain(log_text, [*DUMP, *COMMON], names or {})


def is_moment(log_text: str) -> bool:
    """Whether a dump failed for something that is over a moment later. log_text: as of explain_dump()."""
    errors, _ = _read(log_text[-LOG_TAIL:])
    return any(MOMENT.search(error.text) for error in _telling(errors))


def explain_restore(log_text: str, names: Mapping[int, str] | None = None) -> str:
    """Why a restore failed: one sentence. An error that is not known is quoted.

    names, and the rest, as of explain_dump().
    """
    return _explain(log_text, [*RESTORE, *COMMON], names or {})


def _explain(text: str, table: Table, given: Mapping[int, str]) -> str:
    errors, found = _read(text[-LOG_TAIL:])
    names = found | dict(given)
    real = _telling(errors)
    # An unknown error is often the first half of a known one (what could not be opened, then what that was for).
    for error in real:
        for pattern, sentence in table:
            match = pattern.search(error.text)
            if match is not None:
                return _filled(sentence, match, error, names)
    if not real:
        return ""
    whose = f" ({names[real[0].pid]})" if real[0].pid in names else ""
    return f"CRIU: {one_line(real[0].text, _QUOTED)}{whose}"


def _telling(errors: Iterable[_Error]) -> list[_Error]:
    """Those that say why, as far as any does."""
    told = [error for error in errors if error.text and not HARMLESS.search(error.text)]
    return [error for error in told if not CONSEQUENCE.search(error.text)] or told


def _read(text: str) -> tuple[list[_Error], dict[int, str]]:
    """The errors, each with its process, and the names of the processes that the log itself tells."""
    errors: list[_Error] = []
    names: dict[int, str] = {}
    current = 0
    for match in _LINE.finditer(text):
        if match["begun"]:
            current = int(match["begun"])
            names[current] = f"process {current} ({one_line(match['comm'], 40)})"
            continue
        task = _OF_TASK.search(match["error"])
        errors.append(_Error(match["error"].strip(), int(task[1]) if task else int(match["pid"] or current)))
    return errors, names


def _filled(sentence: str, match: re.Match[str], error: _Error, names: Mapping[int, str]) -> str:
    own = match.re.groupindex.get("pid")
    groups = [
        one_line(group, _QUOTED)
        for number, group in enumerate(match.groups(), 1)
        if group is not None and number != own
    ]
    pid = int(match["pid"]) if own and match["pid"] else error.pid
    who = names.get(pid) or (f"process {pid}" if pid else "")
    # str.format() looks at the braces of the sentence only, never at those of what it fills in.
    return sentence.format(
        *groups,
        who=who or "a process",
        needs=f" ({who} needs it)" if who else "",
        line=one_line(error.text, _QUOTED),
    )
