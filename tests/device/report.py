"""What the device check has found so far: a table, and JSON that is there whatever hangs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

# What a step that cannot be stopped may take longer than all of them together: a call that hangs in the kernel.
GRACE_SECONDS = 20.0


class Report:
    """The rows. The JSON is written anew whenever one begins or ends.

    A thread of its own ends the process with all it has started, when it has not ended by itself `seconds` after the
    beginning: a step may hang where nothing in this program can stop it.
    """

    def __init__(self, out: Path | None, seconds: float) -> None:
        self.rows: list[dict[str, Any]] = []
        # What it runs on.
        self.on: dict[str, str] = {}
        self._out = out
        self._began = time.monotonic()
        self._limit = seconds
        self._under_way: dict[str, Any] = {}
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="deadline", daemon=True).start()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        """Seconds for further steps."""
        return self._limit - self.seconds

    @property
    def good(self) -> bool:
        """Whether all was as expected."""
        return all(row["ok"] for row in self.rows)

    def begin(self, name: str, expected: str) -> None:
        """A step begins."""
        self._under_way = {"name": name, "expected": expected}
        self._write()

    def end(self, got: str, began: float, numbers: dict[str, Any]) -> None:
        """It has ended. began: time.monotonic() of when."""
        row = {
            **self._under_way,
            "got": got,
            "ok": got == self._under_way["expected"] or got.startswith("left out"),
            "seconds": round(time.monotonic() - began, 2),
            **numbers,
        }
        self._under_way = {}
        self.rows.append(row)
        self._write()
        print(f"{'ok  ' if row['ok'] else 'NOT '} {row['seconds']:7.2f} s  {row['name']}: {got}", flush=True)
        for key, value in numbers.items():
            print(f"                   {key}: {value}", flush=True)

    def close(self) -> None:
        """Nothing more comes."""
        self._over.set()
        self._write()
        print(f"{'all as expected' if self.good else 'NOT all as expected'}, {self.seconds:.0f} s", flush=True)

    def _watch(self) -> None:
        if self._over.wait(self._limit + GRACE_SECONDS):
            return
        name = self._under_way.get("name", "the end")
        row = {**self._under_way, "name": name, "got": "it hangs, and could not be stopped", "ok": False}
        self.rows.append(row)
        self._under_way = {}
        self._write()
        print(f"NOT all as expected: {name} hangs; given up after {self.seconds:.0f} s", flush=True)
        for pid in _descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os._exit(1)

    def _write(self) -> None:
        if self._out is not None:
            document = {"on": self.on, "steps": self.rows, "under_way": self._under_way or None}
            draft = self._out.with_name(f".{self._out.name}.new")
            draft.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
            draft.replace(self._out)


def _descendants(top: int) -> list[int]:
    """The processes below one; without psutil, which a device machine need not have."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = children.get(top, [])
    for pid in found:
        found.extend(children.get(pid, []))
    return found
