"""Pods as participants of a cut: whose processes may go into the image."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from slurmckpt.capture.preflight import PodScan
from slurmckpt.capture.processes import read_process
from slurmckpt.coordinator.choice import Skipped, Unsettled
from slurmckpt.coordinator.participant import check_owners


def scan(pid: int) -> PodScan:
    process = read_process(pid)
    assert process is not None
    return PodScan([process], [], [], [], [], [], [])


def test_a_process_that_its_user_may_not_look_into() -> None:
    with pytest.raises(Skipped, match="has rights or secrets that its user may not see"):
        check_owners(scan(os.getpid()), os.getuid() + 1)
    check_owners(scan(os.getpid()), os.getuid())


def test_a_zombie_holds_nothing() -> None:
    """Its directories in /proc belong to root."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        found = scan(child)
        assert found.processes[0].state == "Z"
        check_owners(found, 4321)
    finally:
        os.waitpid(child, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="its directories are root's in any case")
def test_one_that_ends_while_it_is_looked_at() -> None:
    """It was seen to run a moment ago: no reason to tell its user of other rights."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        found = scan(child)
        found.processes[0] = replace(found.processes[0], state="R")
        with pytest.raises(Unsettled, match=r" is just ending$"):
            check_owners(found, 4321)
    finally:
        os.waitpid(child, 0)
