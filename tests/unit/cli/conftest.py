"""A directory that other users can pass through."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def home() -> Iterator[Path]:
    """Not below tmp_path: pytest closes that to other uids."""
    top = Path(tempfile.mkdtemp(prefix="slurmckpt-test-"))
    top.chmod(0o755)
    yield top
    shutil.rmtree(top, ignore_errors=True)
