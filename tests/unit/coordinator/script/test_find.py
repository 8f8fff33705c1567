"""Which srun a stand-in is mounted over: never one that the job's user could put something else in the place of."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt.coordinator.script import find
from slurmckpt.coordinator.script.find import find_srun
from tests.unit.coordinator.parts import GID, UID

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of several owners")


@pytest.fixture
def top() -> Iterator[Path]:
    """Only root may change it, up to the root of the file system: /tmp is sticky."""
    with tempfile.TemporaryDirectory(prefix="slurmckpt-test-") as name:
        yield Path(name)


def program(directory: Path, mode: int = 0o755) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / "srun"
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def found(*directories: Path | str) -> Path | None:
    return find_srun([b"A=b", b"PATH=" + os.fsencode(":".join(map(str, directories)))], UID, {GID})


def test_the_first_in_the_path(top: Path) -> None:
    first, second = program(top / "a"), program(top / "b")
    assert found(top / "empty", top / "a", top / "b") == first
    assert found(top / "b", top / "a") == second
    assert found(top / "empty") is None
    assert found("") is None


def test_what_cannot_be_executed_is_passed_by_as_a_shell_does(top: Path) -> None:
    program(top / "a", 0o644)
    (top / "b" / "srun").mkdir(parents=True)
    assert found(top / "a", top / "b", top / "c", program(top / "c").parent) == top / "c" / "srun"


def test_a_relative_directory_is_not_looked_at(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(program(top / "a").parent)
    assert found(".", "", "a") is None


def test_the_place_behind_links_counts(top: Path) -> None:
    real = program(top / "real")
    (top / "bin").mkdir()
    (top / "bin" / "srun").symlink_to("../real/srun")
    (top / "loop").mkdir()
    (top / "loop" / "srun").symlink_to("srun")
    assert found(top / "loop", top / "bin") == real


def test_without_a_path_the_usual_one_is_taken(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_DEFAULT_PATH", str(program(top / "a").parent))
    assert find_srun([b"HOME=/"], UID, set()) == top / "a" / "srun"
    # The first entry counts, as for getenv(3).
    assert find_srun([b"PATH=/nowhere", f"PATH={top / 'a'}".encode()], UID, set()) is None


@pytest.mark.parametrize(
    ("uid", "gid", "mode"),
    [(UID, 0, 0o755), (0, 0, 0o757), (0, GID, 0o775)],
    ids=["owner", "everybody", "group"],
)
@pytest.mark.parametrize("which", ["file", "directory", "above"])
def test_what_its_user_can_change(top: Path, which: str, uid: int, gid: int, mode: int) -> None:
    real = program(top / "a")
    program(top / "b")
    changed = {"file": real, "directory": real.parent, "above": top}[which]
    os.chown(changed, uid, gid)
    changed.chmod(mode)
    # And not the next one in the PATH, which the script would not execute.
    assert found(top / "a", top / "b") is None


@pytest.mark.parametrize(("gid", "mode"), [(GID + 1, 0o775), (GID, 0o755), (0, 0o1777)])
def test_what_its_user_cannot_change(top: Path, gid: int, mode: int) -> None:
    real = program(top / "a")
    os.chown(real.parent, 0, gid)
    real.parent.chmod(mode)
    assert found(top / "a") == real


def test_a_colon_cannot_be_told_to_pod_init(top: Path) -> None:
    program(top / "a:b")
    (top / "bin").mkdir()
    (top / "bin" / "srun").symlink_to("../a:b/srun")
    assert found(top / "bin") is None
