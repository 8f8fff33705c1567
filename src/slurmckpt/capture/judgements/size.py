"""A pod that is too large: to be looked at as a whole, or for CRIU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.refusals import Reason

# NR_PIPES_WITH_DATA in CRIU's pipes.h: pipes that are read from.
_MAX_PIPES = 1024


def judge(seen: Inspection) -> Iterator[Reason]:
    """At most one reason."""
    if seen.complete:
        yield from _pipes(seen)
        return
    if len(seen.processes) < len(seen.tree.members):
        what = f"and the rest of the pod are more than {seen.limits.processes} processes"
    else:
        what = f"and the rest of the pod hold more than {seen.limits.descriptors} descriptors"
    yield Reason(
        seen.processes[0],
        what,
        "end some, or close what is not in use: a larger pod cannot be looked at before a capture",
    )


def _pipes(seen: Inspection) -> Iterator[Reason]:
    readers = Counter(ends.readers[0].process for ends in seen.descriptors.pipes.values() if ends.readers)
    if readers.total() > _MAX_PIPES:
        yield Reason(
            readers.most_common(1)[0][0],
            f"and the rest of the pod read from more than {_MAX_PIPES} pipes, which CRIU cannot capture",
            "close pipes that are not in use before a checkpoint",
        )
