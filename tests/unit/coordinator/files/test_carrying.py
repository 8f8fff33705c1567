"""Directories that come along with a job: which they are, and how they come back."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt.capture.preflight import PodScan
from slurmckpt.capture.processes import Process
from slurmckpt.config import Files
from slurmckpt.coordinator.files import carrying
from slurmckpt.coordinator.files.carrying import Directory
from slurmckpt.coordinator.files.rules import Pod, Rules
from slurmckpt.errors import Refused, SlurmckptError
from slurmckpt.store.identity import UserFiles
from tests.unit.coordinator.parts import GID, UID

ME = (UID, GID) if os.geteuid() == 0 else (os.getuid(), os.getgid())
GIB = 1 << 30


@pytest.fixture
def root() -> Iterator[int]:
    descriptor = os.open("/", os.O_PATH)
    yield descriptor
    os.close(descriptor)


def nothing() -> None:
    pass


def found(carry: list[str], *environments: dict[str, str], home: str = "/home/jane") -> list[str]:
    """What is carried of a pod with a process for each environment."""
    waits = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    running = [subprocess.Popen(waits, stdin=subprocess.PIPE, env=environment) for environment in environments]
    try:
        processes = [Process(each.pid, 1, 1, 0, "x", "x", "S", 0) for each in running]
        pod = Pod(PodScan(processes, [], [], [], [], [], []), -1, 0)
        return [each.path for each in carrying.find([pod], Rules(Files(carry=tuple(carry)), 0, home, Path("/own")))]
    finally:
        for each in running:
            each.communicate()


def test_variables_are_those_of_the_processes() -> None:
    environments = {"TMPDIR": "/scratch/7", "SLURM_JOB_ID": "7"}, {"TMPDIR": "/scratch/8/"}, {"OTHER": "1"}
    assert found(["$TMPDIR", "/local/$SLURM_JOB_ID", "~/run"], *environments) == [
        "/home/jane/run",
        "/local/7",
        "/scratch/7",
        "/scratch/8",
    ]


def chosen(files: UserFiles, root: int, *paths: Path, home: str = "") -> list[Path]:
    directories = [Directory(str(path), root, ME[0]) for path in paths]
    return [Path(each.path) for each in files.run_sync(carrying.choose, directories, home)]


def test_a_directory_in_another_one_is_carried_once(home: Path, user_files: UserFiles, root: int) -> None:
    """But not in one that is not carried, as Slurm's TMPDIR=/tmp."""
    paths = [home / "a", home / "a" / "b", home / "ab"]
    for path in paths:
        path.mkdir()
        os.chown(path, *ME)
    assert chosen(user_files, root, Path("/tmp"), *paths, home / "none") == [paths[0], paths[2]]


@pytest.mark.parametrize("below", ["", "jane", "jane/x"])
def test_a_home_is_not_carried(home: Path, user_files: UserFiles, root: int, below: str) -> None:
    with pytest.raises(Refused, match=rf"^{home} \(files.carry\) holds the home of the job's user"):
        chosen(user_files, root, home, home=str(home / below))


def test_nothing_is_asked_for() -> None:
    assert found([], {"TMPDIR": "/scratch/7"}) == []


def fill_with_everything(top: Path) -> None:
    (top / "sub" / "closed").mkdir(parents=True)
    (top / "file").write_bytes(b"content")
    (top / "file").chmod(0o640)
    os.utime(top / "file", ns=(10**18, 10**18 + 500_000_000))
    os.link(top / "file", top / "sub" / "other name")
    (top / "link").symlink_to("/etc/passwd")
    (top / "sub" / "closed" / "inside").write_bytes(b"")
    os.utime(top / "sub" / "closed" / "inside", ns=(10**18, 10**18))
    (top / "sub" / "closed").chmod(0o500)
    os.mkfifo(top / "fifo")
    if os.geteuid() == 0:
        for path in [top, *top.rglob("*")]:
            os.chown(path, *ME, follow_symlinks=False)


def tree(top: Path) -> dict[str, tuple[int, int, int, bytes | str]]:
    """Mode, links, time and content of everything."""
    shown: dict[str, tuple[int, int, int, bytes | str]] = {}
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        content: bytes | str = ""
        if stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        modified = status.st_mtime_ns if stat.S_ISREG(status.st_mode) else 0
        shown[str(path.relative_to(top))] = (status.st_mode, status.st_nlink, modified, content)
        if os.geteuid() == 0:
            assert (status.st_uid, status.st_gid) == ME, path
    return shown


def test_everything_comes_back_and_what_came_later_goes(
    home: Path, tmp_path: Path, user_files: UserFiles, root: int
) -> None:
    top = home / "scratch"
    top.mkdir()
    fill_with_everything(top)
    before = tree(top)
    directory, limit, filled = Directory(str(top), root, ME[0]), GIB, list[carrying.Filled]()
    assert user_files.run_sync(carrying.measure, [directory], limit) >= 7
    with (tmp_path / "archive").open("w+b") as archive:
        user_files.run_sync(carrying.save, directory, archive.fileno(), limit, nothing)
        # On another node there is nothing.
        (top / "sub" / "closed").chmod(0o700)
        subprocess.run(["rm", "-rf", str(top)], check=True)
        os.lseek(archive.fileno(), 0, os.SEEK_SET)
        user_files.run_sync(carrying.fill, directory, archive.fileno(), filled)
        assert tree(top) == before
        # In place there is what came later.
        (top / "later").mkdir()
        (top / "file").write_bytes(b"changed")
        if os.geteuid() == 0:
            os.chown(top / "later", *ME)
        os.lseek(archive.fileno(), 0, os.SEEK_SET)
        user_files.run_sync(carrying.fill, directory, archive.fileno(), filled)
        assert tree(top) == before
    # Only what was not there is taken away again.
    assert filled == [carrying.Filled(str(top), True)]
    user_files.run_sync(carrying.empty, directory, filled[0])
    assert os.listdir(home) == []


def test_more_than_may_be_carried(home: Path, tmp_path: Path, user_files: UserFiles, root: int) -> None:
    (home / "large").write_bytes(b"x" * 100)
    directory = Directory(str(home), root, ME[0])
    message = (
        rf"^{home} \(files.carry\) is too large: all carried directories may have 99 B together \(files.max_carry\)$"
    )
    with pytest.raises(Refused, match=message):
        user_files.run_sync(carrying.measure, [directory], 99)
    with (tmp_path / "archive").open("w+b") as archive, pytest.raises(Refused, match=message):
        user_files.run_sync(carrying.save, directory, archive.fileno(), 99, nothing)


def test_a_directory_that_is_removed_meanwhile(home: Path, user_files: UserFiles, root: int) -> None:
    with pytest.raises(SlurmckptError, match=r"/none \(files.carry\) has just been removed$"):
        user_files.run_sync(carrying.save, Directory(str(home / "none"), root, ME[0]), -1, GIB, nothing)


def test_a_link_is_not_followed(home: Path, user_files: UserFiles, root: int) -> None:
    (home / "link").symlink_to(home)
    with pytest.raises(SlurmckptError, match=r"/link \(files.carry\) cannot be saved: Not a directory$"):
        user_files.run_sync(carrying.save, Directory(str(home / "link"), root, ME[0]), -1, GIB, nothing)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: rights of another user")
def test_a_place_where_the_user_may_make_nothing(tmp_path: Path, user_files: UserFiles, root: int) -> None:
    with (
        (tmp_path / "archive").open("w+b") as archive,
        pytest.raises(Refused, match="which the job carries, cannot be"),
    ):
        user_files.run_sync(carrying.fill, Directory("/etc/slurmckpt-test/x", root, ME[0]), archive.fileno(), [])
    assert not Path("/etc/slurmckpt-test").exists()
