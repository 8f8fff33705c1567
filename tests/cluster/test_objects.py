"""Signals, timers, descriptors and attributes of processes, through checkpoints and moves: each is exactly what it was."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.cluster import looks
from tests.cluster.harness import Cluster


def test_signals_timers_descriptors_and_attributes(cluster: Cluster, directory: Path) -> None:
    """Programs side by side, each of which tells what it holds."""
    names = ("pending", "timers", "descriptors", "attributes")
    looks.build(cluster, directory, *names)
    commands = {name: f"./{name}" for name in names}
    commands |= {"descriptors": "./descriptors own", "terminal": "python3 terminal.py"}
    told = looks.go_through(cluster, directory, commands)
    for name in commands:
        looks.same(told[name])
    assert told["pending"].last == [
        *(f"signalfd got 103 value={value}" for value in (30, 31, 32)),
        *(f"process got {number} code=0 value=0 from me=1 uid=1" for number in (signal.SIGUSR1, signal.SIGTERM)),
        *(f"process got 100 code=-1 value={value} from me=1 uid=1" for value in (20, 21, 22)),
        *(f"process got 101 code=-1 value={value} from me=1 uid=1" for value in (10, 11, 12)),
        f"thread got {signal.SIGUSR2} code=0 value=0 from me=1 uid=1",
        *(f"thread got 105 code=-1 value={value} from me=1 uid=1" for value in (40, 41, 42)),
    ]
    assert all(" off by " not in line for line in told["timers"].looks[0])
    assert told["timers"].last == ["expired 1", "0000000"]
    assert told["descriptors"].last == [
        "eventfd holds 12350",
        "another holds 3",
        "pipe held 4096",
        "message hello with a file 0123456789",
        "pidfd ends 1 9",
    ]
    assert told["terminal"].last == ["read b'to be read' shown b'to be shown'", "shell ended by 1"]
    assert told["attributes"].last == ["zombie's status 7", "continued 1"]


def test_calls_that_wait_are_not_interrupted(cluster: Cluster, directory: Path) -> None:
    """Sleeps and waits with and without a time limit neither fail nor end early, whatever is done to the job."""
    looks.build(cluster, directory, "sleeps")
    told = looks.go_through(cluster, directory, {"sleeps": "./sleeps"})["sleeps"]
    assert all(line.endswith("failed=0 error=0") for line in looks.same(told))


def test_what_is_set_once_for_memory_and_threads(cluster: Cluster, directory: Path) -> None:
    """Advice about mappings, locks of memory, and what single threads have of their own."""
    looks.build(cluster, directory, "marks")
    looks.same(looks.go_through(cluster, directory, {"marks": "./marks"})["marks"])
