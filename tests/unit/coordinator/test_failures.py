"""A reason with the place of CRIU's log, for whoever has the log as its cause."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.capture.criu import CriuError
from slurmckpt.coordinator import failures
from slurmckpt.coordinator.choice import Skipped
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.errors import StoreError
from slurmckpt.store import faillogs

SPEC = SimpleNamespace(job=SimpleNamespace(job_id=7))
INCARNATION = cast(Incarnation, SimpleNamespace(store=None, files=None, spec=SPEC))


def caused(error: Exception, *causes: Exception) -> Exception:
    """The error with a chain of causes."""
    current: BaseException = error
    for cause in causes:
        current.__cause__ = cause
        current = cause
    return error


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []

    async def keep(store: Any, files: Any, what: str, text: str) -> Path:
        if text == "full":
            raise StoreError("CRIU's log cannot be kept: No space left on device")
        found.append((what, text))
        return Path("/store/7/logs/it.log")

    monkeypatch.setattr(faillogs, "keep", keep)
    return found


@pytest.mark.parametrize(
    ("error", "sentence", "logs"),
    [
        (CriuError("it failed", "Error"), "it failed (CRIU's log: /store/7/logs/it.log)", ["Error"]),
        (
            caused(Skipped("it failed"), OSError("x"), CriuError("it failed", "Error")),
            "it failed (CRIU's log: /store/7/logs/it.log)",
            ["Error"],
        ),
        (CriuError("CRIU is not installed"), "CRIU is not installed", []),
        (caused(Skipped("the disk is full"), OSError("x")), "the disk is full", []),
        (CriuError("it failed", "full"), "it failed", []),
        (KeyError(), "KeyError", []),
    ],
)
def test_reasons(kept: list[tuple[str, str]], error: Exception, sentence: str, logs: list[str]) -> None:
    assert asyncio.run(failures.reason(INCARNATION, "dump", error)) == sentence
    assert kept == [("dump", text) for text in logs]
