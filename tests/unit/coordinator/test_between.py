"""Connections that lead from one pod of a cut into another."""

from __future__ import annotations

from slurmckpt.capture.preflight import Connection, PodScan
from slurmckpt.capture.processes import Process
from slurmckpt.coordinator.between import connected

SERVER, CLIENT = "10.0.0.1:5000", "10.0.0.1:40001"


def scan(pid: int, comm: str, *connections: tuple[str, str], rank: int = -1) -> PodScan:
    outside = [Connection(local, remote, pid, comm, 7, 1) for local, remote in connections]
    return PodScan(
        [Process(pid, pid - 1000, 1, 1000, comm, "", state="S", tracer=0, rank=rank)], [], [], [], [], outside, []
    )


def test_two_steps_that_come_back_one_after_the_other() -> None:
    one, other = scan(1101, "a", (SERVER, CLIENT)), scan(1102, "b", (CLIENT, SERVER), rank=0)
    assert connected([("0", one), ("1", other)]) == (
        "process 101 (a) of step 0 is connected with process 102 (b) of rank 0 of step 1, and connections between the"
        " steps of a job are restored only together with its batch script, which cannot be captured: start both in one"
        " step"
    )
    assert " of step 0" in connected([("1", other), ("0", one)])


def test_steps_that_come_back_with_their_script() -> None:
    """As MPICH's mpiexec and the step that it has started."""
    script = scan(1101, "mpiexec", (SERVER, CLIENT), (SERVER, "10.0.0.1:40002"))
    assert connected([("batch", script), ("0", scan(1102, "proxy", (CLIENT, SERVER), rank=0))]) == ""


def test_connections_to_elsewhere_and_names_that_a_user_has_chosen() -> None:
    assert connected([("0", scan(1101, "a", (SERVER, CLIENT))), ("1", scan(1102, "b"))]) == ""
    assert connected([("0", scan(1101, "a", (SERVER, CLIENT), (CLIENT, SERVER)))]) == ""
    hostile = connected([("0", scan(1101, "a\nb", (SERVER, CLIENT))), ("1", scan(1102, "c", (CLIENT, SERVER)))])
    assert "\n" not in hostile
