"""Logging of the daemons and hooks: one file for each node, one line for each event."""

from __future__ import annotations

import logging
import os
from io import TextIOWrapper
from pathlib import Path

from slurmckpt.errors import one_line


class OneLine(logging.Formatter):
    """Users choose names that we quote: what they contain must not forge lines. Tracebacks are ours and keep theirs."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """One record as one line."""
        record.message = one_line(record.message, 4000)
        return super().formatMessage(record)


class LogFile(logging.FileHandler):
    """The log file, appended to; never what a link in its place leads to."""

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return open(os.open(self.baseFilename, flags, 0o640), "a", encoding="utf-8", errors="backslashreplace")


def start(path: Path, level: str, who: str) -> None:
    """Log to `path` from now on, as `who`; to stderr when it cannot be written."""
    stop()
    handler: logging.Handler
    try:
        handler = LogFile(path)
    except OSError:
        handler = logging.StreamHandler()
    handler.setFormatter(OneLine(f"%(asctime)s {who}[{os.getpid()}] %(levelname)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())


def stop() -> None:
    """Close the log. To be called before its descriptor is closed otherwise: Python would close that number again."""
    root = logging.getLogger()
    # Those of start(), and nobody else's.
    for old in [handler for handler in root.handlers if isinstance(handler.formatter, OneLine)]:
        root.removeHandler(old)
        old.close()
