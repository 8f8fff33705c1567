"""What unit tests of several parts need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts processes that live for as long as the test."""
    children: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait()
