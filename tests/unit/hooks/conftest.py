"""What lies at fixed places on a node lies in a directory of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmckpt.coordinator import pointer


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the epilog's shell script looks."""
    monkeypatch.setattr(pointer, "PLACE", tmp_path / "place")
    return tmp_path / "place"
