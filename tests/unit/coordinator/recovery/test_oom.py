"""Deaths for lack of memory, from files as cgroup v1 and v2 have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmckpt.coordinator.recovery import oom
from slurmckpt.coordinator.recovery.oom import OomKills


@pytest.mark.parametrize("name", ["memory.oom_control", "memory.events"])
def test_a_death_for_lack_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    counter = tmp_path / "task_0" / name
    counter.parent.mkdir()
    # One from before: the job goes on in a cgroup that it had.
    counter.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")

    def procs_files(pid: int) -> list[Path]:
        if pid == 2:
            raise FileNotFoundError
        return [tmp_path / "task_0" / "cgroup.procs", tmp_path / "cpuset" / "cgroup.procs"]

    monkeypatch.setattr(oom, "procs_files", procs_files)
    kills = OomKills([1, 2, 3])
    assert not kills.any()
    counter.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert kills.any()
    # The cgroup is gone: nothing more can be known.
    counter.unlink()
    assert not kills.any()
