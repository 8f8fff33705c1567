"""Namespaces that the job has made inside its pod: CRIU, which runs in the pod's, would take them for a container's."""

from __future__ import annotations

from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.refusals import Reason

_REMEDY = "start it without a container or sandbox of its own"


def judge(seen: Inspection) -> Iterator[Reason]:
    """Processes in a PID namespace below the pod's, or in any other namespace that is not pod init's."""
    for process in seen.tree.nested:
        yield Reason(process, "runs in a PID namespace that was made inside the pod, which cannot be captured", _REMEDY)
    for process in seen.processes:
        for name, here in seen.namespaces[process.pid].items():
            if here != seen.home.get(name):
                yield Reason(process, f"is in another {name} namespace than the pod, which cannot be captured", _REMEDY)
