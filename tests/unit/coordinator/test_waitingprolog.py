"""A prolog that waits for the lease: in two processes, as it is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from slurmckpt.coordinator.waitingprolog import WaitingProlog
from tests.unit.coordinator.parts import no_descriptor_is_lost


def coordinator(waiting: WaitingProlog, work: Callable[[], int]) -> int:
    """A child that has of the pipe what a coordinator has; `work` gives its exit status."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            os.close(waiting.reader)
            status = work()
        finally:
            os._exit(status)
    return child


def status_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("end", ["lets go", "ends"])
def test_it_returns_with_the_lease_or_with_the_coordinator(end: str) -> None:
    with no_descriptor_is_lost():
        waiting = WaitingProlog()
        child = coordinator(waiting, lambda: 10 + waiting.let_go() if end == "lets go" else 0)
        waiting.wait(60)
        assert status_of(child) == (11 if end == "lets go" else 0)


def test_a_coordinator_that_comes_too_late_knows() -> None:
    """And is told so again when it asks again."""
    with no_descriptor_is_lost():
        before = time.time()
        waiting = WaitingProlog()
        gone, returned = os.pipe()

        def work() -> int:
            os.close(returned)
            os.read(gone, 1)
            return 10 + waiting.let_go() + waiting.let_go()

        child = coordinator(waiting, work)
        waiting.wait(0)
        os.close(returned)
        os.close(gone)
        assert status_of(child) == 10
        assert before <= waiting.since <= time.time()
