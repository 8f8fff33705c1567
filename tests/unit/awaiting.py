"""Waiting for what comes by itself: for as long as a busy machine may need, and no longer than it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

# In seconds. With many times more work than processors a process stands still for half of it.
PATIENCE = 100.0


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Return as soon as it is true; AssertionError that names `what` when it does not come to that."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE:g} s in vain: {what}"
        time.sleep(0.002)


async def until(condition: Callable[[], object]) -> None:
    """Let others run until it is true; AssertionError when it does not come to that."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE:g} s in vain"
        await asyncio.sleep(0.002)
