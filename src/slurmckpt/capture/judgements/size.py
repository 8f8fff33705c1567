"""A pod that is too large to be looked at as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.refusals import Reason


def judge(seen: Inspection) -> Iterator[Reason]:
    """At most one reason."""
    if seen.complete:
        return
    if len(seen.processes) < len(seen.tree.members):
        what = f"and the rest of the pod are more than {seen.limits.processes} processes"
    else:
        what = f"and the rest of the pod hold more than {seen.limits.descriptors} descriptors"
    yield Reason(seen.processes[0], what, "the pod is too large to be looked at before a capture")
