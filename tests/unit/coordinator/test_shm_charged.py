"""The job's /dev/shm is filled by a process in the job's cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmckpt.coordinator import shm, shm_charged
from slurmckpt.coordinator.shm import ShmError


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/a").write_bytes(b"content")
    shm.save(tmp_path / "source", tmp_path / "a.tar")
    (tmp_path / "target").mkdir()
    return tmp_path / "a.tar"


def test_it_joins_and_fills(archive: Path, tmp_path: Path) -> None:
    cgroups = [tmp_path / "cgroup.procs", tmp_path / "again"]
    for path in cgroups:
        path.touch()
    shm_charged.fill(tmp_path / "target", archive, cgroups)
    assert (tmp_path / "target/a").read_bytes() == b"content"
    assert [path.read_text() for path in cgroups] == ["0", "0"]


def test_without_cgroups_it_is_the_callers(archive: Path, tmp_path: Path) -> None:
    shm_charged.fill(tmp_path / "target", archive, [])
    assert os.listdir(tmp_path / "target") == ["a"]


def test_what_goes_wrong_is_said_in_one_line(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ShmError, match=r"^/dev/shm of the job cannot be filled: \S+/gone/x: No such file or directory$"
    ):
        shm_charged.fill(tmp_path / "target", archive, [tmp_path / "gone/x"])
    (tmp_path / "bad.tar").write_bytes(b"x" * 1000)
    (tmp_path / "cgroup.procs").touch()
    with pytest.raises(ShmError, match=r"^/dev/shm of the job cannot be filled: "):
        shm_charged.fill(tmp_path / "target", tmp_path / "bad.tar", [tmp_path / "cgroup.procs"])
    killed = tmp_path / "killed"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(killed))
    with pytest.raises(ShmError, match=r"killed by signal 9, for lack of memory perhaps$"):
        shm_charged.fill(tmp_path / "target", archive, [tmp_path / "cgroup.procs"])
