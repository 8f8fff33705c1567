"""Connections between the pods of one cut: each end is in an image of its own (capture/crossings.py).

They come back where all pods come back together, and that is where the batch script is one of them. Steps of a script
that runs again come back when it comes to them, one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from slurmckpt.capture import crossings
from slurmckpt.capture.preflight import Connection, PodScan
from slurmckpt.coordinator.participant import Participant
from slurmckpt.errors import one_line

_REMEDY = (
    "and connections between the steps of a job are restored only together with its batch script, which cannot be"
    " captured: start both in one step"
)


def connected(scans: Iterable[tuple[str, PodScan]]) -> str:
    """A sentence about the first TCP connection that leads from one of these pods into another, and cannot be restored.

    scans: the name of each step, and what a look at its pod has found. An empty text where there is none, and where the
    batch script is among them.
    """
    scans = list(scans)
    if any(step == "batch" for step, _ in scans):
        return ""
    ends: dict[tuple[str, str], tuple[str, str]] = {}
    for step, scan in scans:
        for one in scan.outside:
            here = _name(scan, one), f"step {step}"
            there = ends.get((one.remote, one.local))
            if there is not None and there[1] != here[1]:
                return f"{there[0]} of {there[1]} is connected with {here[0]} of {here[1]}, {_REMEDY}"
            ends[one.local, one.remote] = here
    return ""


def seal(participants: Iterable[Participant]) -> None:
    """What crossings.seal() does, with the images of these pods, which are just written. Raises what that does."""
    crossings.seal(
        [
            crossings.Dumped(each.step.name, each.images, os.stat(f"/proc/{each.pod.init_pid}/ns/net").st_ino)
            for each in participants
        ]
    )


def _name(scan: PodScan, connection: Connection) -> str:
    found = next((process for process in scan.processes if process.pid == connection.pid), None)
    return f"a process ({one_line(connection.comm, 40)})" if found is None else str(found)
