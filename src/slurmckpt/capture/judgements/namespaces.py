"""Namespaces that the job has made inside its pod: CRIU, which runs in the pod's, would take them for a container's."""

from __future__ import annotations

from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.processes import Process
from slurmckpt.capture.refusals import Reason

# Pod init is in these too. Not in the time namespace of a restored pod, which CRIU has made: there the leader counts.
_OF_POD_INIT = ("user", "mnt", "net", "ipc", "uts", "cgroup")


def judge(seen: Inspection) -> Iterator[Reason]:
    """Processes in namespaces that are not the pod's, and those that have prepared some for their children."""
    for process in seen.tree.nested:
        yield _reason(process, "runs in a PID namespace that was made inside the pod")
    if not seen.processes:
        return
    clock = seen.namespaces[seen.processes[0].pid].get("time")
    for process in seen.processes:
        here = seen.namespaces[process.pid]
        for name in _OF_POD_INIT:
            if name in here and here[name] != seen.home.get(name):
                yield _reason(process, f"is in another {name} namespace than the pod")
        if "time" in here and here["time"] != clock:
            yield _reason(process, "is in another time namespace than the pod")
        elif "time" in here and here.get("time_for_children") != here["time"]:
            yield _reason(process, "has made a time namespace for its children")
        # The link leads nowhere as long as no child has been made (pid_namespaces(7)). A zombie has none of these.
        if "mnt" in here and not seen.tree.nested and here.get("pid_for_children") != here.get("pid"):
            yield _reason(process, "has made a PID namespace for its children")


def _reason(process: Process, what: str) -> Reason:
    return Reason(process, f"{what}, which cannot be captured", "start it without a container or sandbox of its own")
