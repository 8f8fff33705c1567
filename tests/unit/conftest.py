"""What unit tests of several parts need."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes, or the making of it, says nothing on a busy machine. All else stays as it was chosen.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts processes that live for as long as the test."""
    children: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait()


@pytest.fixture
def passable() -> Iterator[Path]:
    """A directory through which every user may pass.

    Not below tmp_path: pytest closes what that lies in to others, again whenever another pytest starts.
    """
    with tempfile.TemporaryDirectory(prefix="slurmckpt-test-") as name:
        top = Path(name)
        top.chmod(0o711)
        yield top
