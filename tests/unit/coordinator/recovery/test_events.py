"""What a job is restored from, by how its last incarnation ended."""

from __future__ import annotations

import pytest

from slurmckpt.coordinator.recovery.events import unwanted

ALL = frozenset({"nodefail", "preempt", "timelimit", "crash", "hang"})


@pytest.mark.parametrize("outcome", ["lost", "preempted", "requeued", "unknown", "TIMEOUT", None])
def test_with_every_event_in_the_list(outcome: str | None) -> None:
    assert unwanted(ALL, outcome) == ""


@pytest.mark.parametrize("outcome", ["requeued", "unknown", "TIMEOUT", "NODE_FAIL", "", None])
def test_what_is_not_known_to_be_an_event_is_restored(outcome: str | None) -> None:
    """Somebody has requeued the job, and wants it to go on."""
    assert unwanted(frozenset(), outcome) == ""


def test_an_event_that_is_not_in_the_list() -> None:
    assert unwanted({"timelimit", "crash"}, "lost") == (
        "the node of the last incarnation was lost, and nodefail is not among the events that this job recovers from"
        " (crash, timelimit)"
    )
    assert unwanted({"nodefail"}, "preempted") == (
        "it was preempted, and preempt is not among the events that this job recovers from (nodefail)"
    )
