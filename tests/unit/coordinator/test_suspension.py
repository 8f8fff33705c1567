"""How a suspended job is recognised, with cgroup v1, with cgroup v2, and without either."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.suspension import suspended
from tests.unit.coordinator.parts import proc_tree


def step(top: Path, files: dict[str, str], running: bool = True, state: str = "S", stopping: bool = False) -> Step:
    """A step in a cgroup with these files, whose shim has the given state."""
    proc_tree(top, {f"cgroup/{name}": text for name, text in files.items()})
    proc_tree(top, {"proc/70/stat": f"70 (a) T (b) {state} 1 70 70 0 -1\n"})
    pod = SimpleNamespace(running=running, stopping=stopping, cgroups=[top / "cgroup/cgroup.procs"])
    return Step("0", 1, 1, pod=cast(Any, pod), shim=70)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, False),
        ({"freezer.state": "THAWED\n"}, False),
        ({"freezer.state": "FREEZING\n"}, True),
        ({"freezer.state": "FROZEN\n"}, True),
        ({"cgroup.freeze": "0\n", "cgroup.events": "populated 1\nfrozen 0\n"}, False),
        ({"cgroup.freeze": "1\n", "cgroup.events": "populated 1\nfrozen 0\n"}, True),
        ({"cgroup.freeze": "0\n", "cgroup.events": "populated 1\nfrozen 1\n"}, True),
    ],
)
def test_by_its_cgroup(tmp_path: Path, files: dict[str, str], expected: bool) -> None:
    assert suspended([step(tmp_path, files)], tmp_path / "proc") is expected


@pytest.mark.parametrize(("state", "expected"), [("S", False), ("R", False), ("t", False), ("T", True)])
def test_by_its_shim(tmp_path: Path, state: str, expected: bool) -> None:
    assert suspended([step(tmp_path, {}, state=state)], tmp_path / "proc") is expected


def test_by_a_signal_that_stops_it(tmp_path: Path) -> None:
    """Slurm sends it some seconds before it stops everything."""
    assert suspended([step(tmp_path, {}, stopping=True)], tmp_path / "proc")


def test_only_steps_that_run_count(tmp_path: Path) -> None:
    assert not suspended([step(tmp_path, {"freezer.state": "FROZEN"}, running=False, state="T")], tmp_path / "proc")
    assert not suspended([Step("0", 1, 1)], tmp_path / "proc")


def test_a_shim_that_has_ended(tmp_path: Path) -> None:
    assert not suspended([step(tmp_path, {})], tmp_path)
