"""What others than root could change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmckpt.doctor import trusted

STRANGER = 65534


@pytest.fixture
def roots(tmp_path: Path) -> Path:
    """A file that only root can change."""
    if os.geteuid() != 0:
        pytest.skip("needs root: only root can make a file of root's")
    path = tmp_path / "directory" / "file"
    path.parent.mkdir(mode=0o755)
    path.write_text("text")
    path.chmod(0o755)
    return path


def test_roots_own_files_are_trusted() -> None:
    assert trusted.fault(Path("/etc/passwd")) == ""
    assert trusted.directory_fault(Path("/usr/bin")) == ""
    assert trusted.unreadable(Path("/etc/passwd")) == ""


def test_the_users_own_files_are_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    if os.geteuid() == 0:
        os.chown(path, STRANGER, STRANGER)
    uid = path.stat().st_uid
    assert trusted.fault(path) == f"is owned by uid {uid}, not by root"


def test_missing(tmp_path: Path) -> None:
    assert trusted.fault(tmp_path / "file") == "is missing"
    assert trusted.unreadable(tmp_path / "file") == "is missing"
    assert trusted.fault(tmp_path) == "is not a regular file"


def test_modes(roots: Path) -> None:
    assert trusted.fault(roots, executable=True) == ""
    roots.chmod(0o644)
    assert trusted.fault(roots) == ""
    assert trusted.fault(roots, executable=True) == "is not executable (mode 0644)"
    roots.chmod(0o646)
    assert trusted.fault(roots) == "can be written by others than root (mode 0646)"
    roots.chmod(0o664)
    assert trusted.fault(roots) == ""
    os.chown(roots, 0, STRANGER)
    assert trusted.fault(roots) == "can be written by others than root (mode 0664)"


def test_a_directory_above_counts(roots: Path) -> None:
    parent = roots.parent
    parent.chmod(0o777)
    assert trusted.fault(roots) == "can be written by others than root (mode 0777)"
    assert trusted.directory_fault(parent) == "can be written by others than root (mode 0777)"
    below = parent / "below"
    below.mkdir(0o755)
    assert trusted.directory_fault(below) == f"lies in {parent}, which can be written by others than root (mode 0777)"
    parent.chmod(0o1777)
    assert trusted.directory_fault(below) == ""
    os.chown(parent, STRANGER, STRANGER)
    parent.chmod(0o755)
    assert trusted.fault(roots) == f"is owned by uid {STRANGER}, not by root"


def test_a_link_counts_where_it_lies_and_where_it_leads(roots: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, STRANGER, STRANGER)
    (theirs / "link").symlink_to(roots)
    assert trusted.fault(theirs / "link") == f"is owned by uid {STRANGER}, not by root"
    (theirs / "file").write_text("text")
    link = roots.parent / "link"
    link.symlink_to(theirs / "file")
    assert trusted.fault(link) == f"is owned by uid {STRANGER}, not by root"


def test_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(0o640)
    path.chmod(0o640)
    assert trusted.unreadable(path) == "cannot be read by other users (mode 0640)"
    path.chmod(0o644)
    tmp_path.chmod(0o700)
    assert trusted.unreadable(path) == f"lies in {tmp_path}, which other users cannot enter (mode 0700)"
