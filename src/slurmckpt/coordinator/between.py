"""Connections between the pods of one cut: each end is in an image of its own, so a restore resets both."""

from __future__ import annotations

from collections.abc import Iterable

from slurmckpt.capture.preflight import Connection, PodScan
from slurmckpt.errors import one_line

_REMEDY = (
    "and connections between the steps of a job cannot be restored: start both in one step; mpiexec of MPICH or Intel"
    " MPI does with -launcher fork (HYDRA_LAUNCHER=fork)"
)


def connected(scans: Iterable[tuple[str, PodScan]]) -> str:
    """A sentence about the first TCP connection that leads from one of these pods into another, or an empty text.

    scans: the name of each step, and what a look at its pod has found. Their ranks would be told that the other end is
    gone: a launcher of MPI programs that is connected with the step that it has started ends with an error then.
    """
    ends: dict[tuple[str, str], tuple[str, str]] = {}
    for step, scan in scans:
        for one in scan.outside:
            here = _name(scan, one), "the batch script" if step == "batch" else f"step {step}"
            there = ends.get((one.remote, one.local))
            if there is not None and there[1] != here[1]:
                return f"{there[0]} of {there[1]} is connected with {here[0]} of {here[1]}, {_REMEDY}"
            ends[one.local, one.remote] = here
    return ""


def _name(scan: PodScan, connection: Connection) -> str:
    found = next((process for process in scan.processes if process.pid == connection.pid), None)
    return f"a process ({one_line(connection.comm, 40)})" if found is None else str(found)
