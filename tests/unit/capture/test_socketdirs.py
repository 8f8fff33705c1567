"""Directories of the user's own in which sockets are bound: root's alone for a moment, and his again afterwards."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt.capture import procfs, socketdirs
from slurmckpt.capture.socketdirs import OwnDirectory
from slurmckpt.errors import Refused

pytestmark = pytest.mark.root
UID, GID = 4321, 4322


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root directory of a pod whose init is process 7, with a /tmp."""
    root = tmp_path / "proc/7/root"
    root.mkdir(parents=True)
    shared = root / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(procfs, "PROC", str(tmp_path / "proc"))
    yield root


@pytest.fixture
def images(tmp_path: Path) -> Path:
    path = tmp_path / "images"
    path.mkdir()
    return path


def owned(path: Path, mode: int = 0o750) -> Path:
    path.mkdir()
    os.chown(path, UID, GID)
    path.chmod(mode)
    return path


def look(path: Path) -> tuple[int, int, int]:
    status = path.lstat()
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


def test_a_directory_right_below_tmp_is_found(world: Path) -> None:
    owned(world / "tmp/pymp-x")
    assert socketdirs.find(7, "/tmp/pymp-x", UID) == OwnDirectory("/tmp/pymp-x", UID, GID, 0o750)


def test_what_cannot_be_taken(world: Path) -> None:
    owned(world / "home")
    owned(world / "home/x")
    owned(world / "tmp/a")
    owned(world / "tmp/a/b")
    (world / "tmp/link").symlink_to("a")
    (world / "tmp/roots").mkdir()
    for path in ("/home", "/home/x", "/tmp/a/b", "/tmp/link", "/tmp/link/b", "/tmp/roots", "/tmp/none", "/", "", "x"):
        assert socketdirs.find(7, path, UID) is None, path
    assert socketdirs.find(7, "/tmp/a", UID + 1) is None
    (world / "tmp").chmod(0o777)
    assert socketdirs.find(7, "/tmp/a", UID) is None


def test_it_is_roots_until_it_is_given_back(world: Path, images: Path) -> None:
    there = owned(world / "tmp/there", 0o2751)
    socketdirs.save([OwnDirectory("/tmp/there", UID, GID, 0o2751), OwnDirectory("/tmp/new", UID, GID, 0o700)], images)
    stack = socketdirs.take(7, images)
    assert look(there) == look(world / "tmp/new") == (0, 0, 0o700)
    stack.close()
    assert look(there) == (UID, GID, 0o2751)
    assert look(world / "tmp/new") == (UID, GID, 0o700)
    stack.close()


def test_no_directories_need_no_note(world: Path, images: Path) -> None:
    socketdirs.save([], images)
    assert os.listdir(images) == []
    socketdirs.take(7, images).close()


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("link", "/tmp/x, where a unix socket is bound, cannot be opened: Not a directory"),
        ("file", "/tmp/x, where a unix socket is bound, cannot be opened: Not a directory"),
        ("another's", "/tmp/x, where a unix socket is bound, belongs to somebody else on this node"),
        ("no sticky bit", "a directory on the way to /tmp/x, where a unix socket is bound, can be changed by users"),
        ("only root's", "/tmp/x, where a unix socket is bound, does not lie in a directory that all users share"),
    ],
)
def test_what_stands_in_its_place_is_not_touched(world: Path, images: Path, what: str, reason: str) -> None:
    victim = world / "etc"
    victim.mkdir(mode=0o755)
    path = world / "tmp/x"
    if what == "link":
        path.symlink_to(victim)
    elif what == "file":
        path.touch()
    elif what == "another's":
        path.mkdir()
    else:
        (world / "tmp").chmod(0o777 if what == "no sticky bit" else 0o755)
    before = look(victim), path.exists() and look(path)
    socketdirs.save([OwnDirectory("/tmp/x", UID, GID, 0o700)], images)
    with pytest.raises(Refused) as caught:
        socketdirs.take(7, images)
    assert caught.value.reason == reason
    assert (look(victim), path.exists() and look(path)) == before


def test_all_are_given_back_when_one_cannot_be_taken(world: Path, images: Path) -> None:
    first = owned(world / "tmp/first")
    (world / "tmp/x").mkdir()
    socketdirs.save([OwnDirectory("/tmp/first", UID, GID, 0o750), OwnDirectory("/tmp/x", UID, GID, 0o700)], images)
    with pytest.raises(Refused):
        socketdirs.take(7, images)
    assert look(first) == (UID, GID, 0o750)


def test_pods_may_share_one(world: Path, images: Path) -> None:
    """It is the user's again when the last has done with it."""
    there = owned(world / "tmp/there")
    socketdirs.save([OwnDirectory("/tmp/there", UID, GID, 0o750)], images)
    first, second = socketdirs.take(7, images), socketdirs.take(7, images)
    first.close()
    assert look(there) == (0, 0, 0o700)
    second.close()
    assert look(there) == (UID, GID, 0o750)
    socketdirs.take(7, images).close()
    assert look(there) == (UID, GID, 0o750)
