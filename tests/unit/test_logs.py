"""The log file: one line for an event, whatever users put into it, and no descriptor of it left behind."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt import logs

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (.*)")


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Without the handlers of the test runner, and with what start() made taken away again."""
    root = logging.getLogger()
    kept, level = root.handlers, root.level
    root.handlers = []
    try:
        yield
    finally:
        logs.stop()
        root.handlers = kept
        root.setLevel(level)


def lines(path: Path) -> list[str]:
    found = [LINE.fullmatch(line) for line in path.read_text().splitlines()]
    return [match[1] if match else "no line of the log" for match in found]


@alone()
def test_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logs.start(path, "info", "coordinator job=7")
    logging.getLogger("x").info("step %s is restored from #%d", "0", 4)
    logging.getLogger("x").debug("not wanted")
    assert lines(path) == [f"coordinator job=7[{os.getpid()}] INFO: step 0 is restored from #4"]
    assert path.stat().st_mode & 0o777 & ~0o640 == 0


@alone()
def test_users_cannot_forge_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logs.start(path, "info", "prolog")
    logging.getLogger().warning("file %s", "a\n2026-01-01 00:00:00,000 prolog[1] INFO: forged\x1b[2J\udcff")
    (line,) = lines(path)
    assert line.endswith(r"WARNING: file a\n2026-01-01 00:00:00,000 prolog[1] INFO: forged\x1b[2J\udcff")


@alone()
def test_a_traceback_keeps_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logs.start(path, "info", "prolog")
    try:
        raise KeyError("a fault of ours")
    except KeyError:
        logging.getLogger().exception("job 7")
    text = path.read_text()
    assert "ERROR: job 7\nTraceback (most recent call last):\n" in text
    assert text.endswith("KeyError: 'a fault of ours'\n")


@alone()
def test_it_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("of an earlier process\n")
    logs.start(path, "info", "prolog")
    logging.getLogger().info("x")
    assert path.read_text().startswith("of an earlier process\n2")


@alone()
def test_starting_again_closes_the_old_one(tmp_path: Path) -> None:
    logs.start(tmp_path / "a", "info", "prolog")
    before = len(os.listdir("/proc/self/fd"))
    logs.start(tmp_path / "b", "info", "coordinator")
    logging.getLogger().info("x")
    assert (tmp_path / "a").read_text() == ""
    assert len(lines(tmp_path / "b")) == 1
    assert len(os.listdir("/proc/self/fd")) == before


@alone()
def test_after_stop_its_number_can_be_anothers(tmp_path: Path) -> None:
    """Garbage collection must not close it under the new owner."""
    logs.start(tmp_path / "log", "info", "prolog")
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, logging.StreamHandler)
    number = handler.stream.fileno()
    logs.stop()
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    assert other == number
    del handler
    gc.collect()
    os.write(other, b"still open")
    os.close(other)


@pytest.mark.parametrize("what", ["link", "directory", "missing"])
@alone()
def test_a_log_that_cannot_be_written_goes_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    path = tmp_path / "log"
    if what == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif what == "directory":
        path.mkdir()
    else:
        path = tmp_path / "missing" / "log"
    logs.start(path, "info", "prolog")
    logging.getLogger().info("still said")
    assert "INFO: still said" in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists()
    logs.stop()
    os.fstat(2)


@alone()
def test_handlers_of_others_are_left_alone(tmp_path: Path) -> None:
    other = logging.NullHandler()
    logging.getLogger().addHandler(other)
    logs.start(tmp_path / "log", "info", "prolog")
    logs.stop()
    assert logging.getLogger().handlers == [other]
