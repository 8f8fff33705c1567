"""Logging of the daemons and hooks: one file for each node, one line for each event."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path

from slurmckpt.errors import one_line


class OneLine(logging.Formatter):
    """Users choose names that we quote: what they contain must not forge lines. Tracebacks are ours and keep theirs."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """One record as one line."""
        record.message = one_line(record.message, 4000)
        return super().formatMessage(record)


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # takes one only from Python 3.11
    """Ours, so that stop() ends no handler of anybody else."""


def start(path: Path, level: str, who: str) -> None:
    """Log to `path` from now on, as `who`; to stderr when it cannot be written."""
    stop()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        handler = _Handler(open(descriptor, "a", encoding="utf-8", errors="backslashreplace"))  # noqa: SIM115
    except OSError:
        handler = _Handler()
    handler.setFormatter(OneLine(f"%(asctime)s {who}[{os.getpid()}] %(levelname)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())


def stop() -> None:
    """Close the log. To be called before its descriptor is closed otherwise: Python would close that number again."""
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(old)
        old.close()
        if old.stream is not sys.stderr:
            with contextlib.suppress(OSError):
                old.stream.close()
