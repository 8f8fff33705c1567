"""A look at a pod of a cut."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.capture.preflight import PodScan
from slurmckpt.capture.processes import Process
from slurmckpt.coordinator import participant
from slurmckpt.coordinator.choice import Choice
from slurmckpt.coordinator.participant import look


@pytest.mark.parametrize("kind", ["stand-in", "real", "gone", "other"])
def test_an_srun_that_is_no_stand_in_is_not_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its connections to Slurm would be reset at the restore, and its step is in no image."""
    libexec, other = tmp_path / "libexec", tmp_path / "bin"
    for place in (libexec, other):
        place.mkdir()
        shutil.copy("/bin/sleep", place / "srun")
    program = {"stand-in": libexec / "srun", "other": Path("/bin/sleep")}.get(kind, other / "srun")
    with subprocess.Popen([program, "100"]) as running:
        pid = 0x7FFFFFFF if kind == "gone" else running.pid
        process = Process(pid, 120, 1, 0, "srun", str(program), "S", 0)
        found = PodScan([process], [], [], [], [], [], [])
        monkeypatch.setattr(participant, "scan", lambda *_, **__: found)
        leader = Process(4, 100, 1, 0, "leader", "leader", "S", 0)
        monkeypatch.setattr(participant, "pod_processes", lambda *_: [leader, process])
        settings = SimpleNamespace(libexec=libexec)
        pod = SimpleNamespace(init_pid=1, leader_pid=100, tasks={}, status_key="pipe:[1]", settings=settings)
        refusals = look(cast(Any, SimpleNamespace(name="0", carrier=0)), cast(Any, pod), Choice([])).refusals
        running.kill()
    assert len(refusals) == (kind == "real")
    if refusals:
        assert "is connected to Slurm by itself, and its step would not come back" in refusals[0]
