"""Which events a job is recovered from, and which one ended its last incarnation."""

from __future__ import annotations

from collections.abc import Collection

# Outcomes of an attempt in the job's record (store.record). LOST: nobody wrote its end, so its node died, lost its
# network or was given up by Slurm. The record is the user's: a forged outcome decides about his own job only.
LOST = "lost"
PREEMPTED = "preempted"

_CAUSES = {LOST: ("nodefail", "the node of the last incarnation was lost"), PREEMPTED: ("preempt", "it was preempted")}


def unwanted(events: Collection[str], outcome: str | None) -> str:
    """Why a job whose last incarnation ended like this is not to be restored; empty when it is.

    Whoever requeues a job by hand wants it to go on: only what is known to be an event that is not in the list counts.
    """
    event, cause = _CAUSES.get(outcome or "", ("", ""))
    if not event or event in events:
        return ""
    return f"{cause}, and {event} is not among the events that this job recovers from ({', '.join(sorted(events))})"
