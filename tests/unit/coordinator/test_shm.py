"""The job's /dev/shm: what goes into the archive comes out, and nothing the job does meanwhile leads root astray."""

from __future__ import annotations

import os
import socket
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from slurmckpt.coordinator import shm
from slurmckpt.coordinator.shm import ShmError
from tests.unit.coordinator.parts import GID, UID

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: owners, mounts")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "shm"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "new"
    path.mkdir()
    path.chmod(0o1777)
    return path


def test_an_empty_one_needs_no_archive(source: Path, tmp_path: Path) -> None:
    assert shm.save(source, tmp_path / "a.tar") is False
    assert not (tmp_path / "a.tar").exists()


def describe(top: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        content: object = None
        if stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        name = str(path.relative_to(top))
        found[name] = (status.st_mode, status.st_uid, status.st_gid, status.st_nlink, content)
    return found


def test_all_kinds_come_back_as_they_were(source: Path, target: Path, tmp_path: Path) -> None:
    (source / "torch_1").write_bytes(os.urandom(100_000))
    (source / "torch_1").chmod(0o600)
    (source / "empty").touch()
    (source / os.fsdecode(b"not utf-8 \xff")).write_bytes(b"x")
    (source / "d").mkdir(mode=0o700)
    (source / "d" / "e").mkdir(mode=0o755)
    (source / "d" / "e" / "sem.x").write_bytes(b"semaphore")
    (source / "d" / "again").hardlink_to(source / "torch_1")
    (source / "link").symlink_to("/dev/shm/torch_1")
    os.mkfifo(source / "fifo", 0o640)
    (source / "setgid").mkdir()
    (source / "setgid").chmod(0o2770)
    if os.geteuid() == 0:
        for path in source.rglob("*"):
            os.chown(path, UID, GID, follow_symlinks=False)
        # chown(2) takes the bit away.
        (source / "setgid").chmod(0o2770)
    before = describe(source)
    archive = tmp_path / "a.tar"
    assert shm.save(source, archive) is True
    assert archive.stat().st_mode & 0o777 == 0o600
    (target / "what was there before").mkdir()
    (target / "what was there before" / "x").touch()
    shm.fill(target, archive)
    assert describe(target) == before
    assert (target / "torch_1").samefile(target / "d" / "again")


def test_sockets_are_left_out(source: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "s"))
        (source / "file").touch()
        assert shm.save(source, tmp_path / "a.tar") is True
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert tar.getnames() == ["file"]


def swap_before_open(monkeypatch: pytest.MonkeyPatch, name: str, change: object) -> None:
    """Have `change` happen between the look at `name` and its opening, as a process that is not captured could."""
    real = os.open
    assert callable(change)

    def swapped(path: str, flags: int, *args: int, dir_fd: int | None = None) -> int:
        if path == name:
            change()
        return real(path, flags, *args, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapped)


def test_a_file_that_becomes_a_link_is_not_followed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "shadow"
    secret.write_bytes(b"root's secret")
    (source / "file").write_bytes(b"harmless")

    def change() -> None:
        (source / "file").unlink()
        (source / "file").symlink_to(secret)

    swap_before_open(monkeypatch, "file", change)
    with pytest.raises(ShmError, match="/dev/shm of the job cannot be saved"):
        shm.save(source, tmp_path / "a.tar")
    assert b"secret" not in (tmp_path / "a.tar").read_bytes()


def test_a_file_that_becomes_a_fifo_does_not_block(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "file").write_bytes(b"harmless")
    (source / "other").write_bytes(b"other")

    def change() -> None:
        (source / "file").unlink()
        os.mkfifo(source / "file")

    swap_before_open(monkeypatch, "file", change)
    assert shm.save(source, tmp_path / "a.tar") is True
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert tar.getnames() == ["other"]


def test_a_file_that_disappears_is_left_out(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source / "file").touch()
    (source / "other").touch()
    swap_before_open(monkeypatch, "file", lambda: (source / "file").unlink())
    assert shm.save(source, tmp_path / "a.tar") is True
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert tar.getnames() == ["other"]


def test_nothing_is_restored_where_the_job_could_reach_it_meanwhile(
    source: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that the job puts where root is about to write must not be followed."""
    (source / "d").mkdir()
    (source / "d" / "passwd").write_bytes(b"evil")
    shm.save(source, tmp_path / "a.tar")
    elsewhere = tmp_path / "etc"
    elsewhere.mkdir()
    real = tarfile.TarFile.extract
    seen: list[str] = []

    def extract(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path, **options: Any) -> None:
        seen.append(f"{stat.S_IMODE(Path(path).stat().st_mode):o} {Path(path).stat().st_uid}")
        if not (target / "d").exists():
            (target / "d").symlink_to(elsewhere)
        real(tar, member, path, **options)

    monkeypatch.setattr(tarfile.TarFile, "extract", extract)
    with pytest.raises(ShmError, match="cannot be filled"):
        shm.fill(target, tmp_path / "a.tar")
    assert list(elsewhere.iterdir()) == []
    assert seen == [f"700 {os.geteuid()}"] * 2
    assert os.listdir(target) == ["d"]


@pytest.mark.parametrize(
    "member",
    [
        {"name": "../x"},
        {"name": "a/../../x"},
        {"name": "/etc/x"},
        {"name": "x", "type": tarfile.LNKTYPE, "linkname": "/etc/shadow"},
        {"name": "x", "type": tarfile.LNKTYPE, "linkname": "../../etc/shadow"},
        {"name": "x", "type": tarfile.CHRTYPE},
        {"name": "x", "type": tarfile.BLKTYPE},
    ],
    ids=lambda member: f"{member['name']} {member.get('type', b'')!r}",
)
def test_members_that_save_does_not_write(target: Path, tmp_path: Path, member: dict[str, object]) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo()
        for key, value in member.items():
            setattr(info, key, value)
        tar.addfile(info)
    with pytest.raises(ShmError, match=r"holds '.*', which is not restored"):
        shm.fill(target, tmp_path / "a.tar")
    assert os.listdir(target) == []


def test_a_broken_archive(target: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"x" * 1000)
    with pytest.raises(ShmError, match="cannot be filled"):
        shm.fill(target, tmp_path / "a.tar")
    assert os.listdir(target) == []


def test_clear_does_not_follow_links(source: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (source / "link").symlink_to(tmp_path / "kept")
    (source / "d").mkdir()
    (source / "d" / "link").symlink_to(tmp_path / "kept")
    shm.clear(source)
    assert os.listdir(source) == []
    assert (tmp_path / "kept" / "file").exists()


@needs_root
def test_mount_and_unmount(tmp_path: Path) -> None:
    path = tmp_path / "shm"
    shm.mount(path)
    try:
        shm.mount(path)
        assert os.path.ismount(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o1777
        flags = os.statvfs(path).f_flag
        assert flags & os.ST_NOSUID and flags & os.ST_NODEV
        (path / "file").touch()
    finally:
        shm.unmount(path)
    assert not path.exists()
    shm.unmount(path)


def test_a_node_without_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "mount")

    monkeypatch.setattr("subprocess.run", missing)
    with pytest.raises(ShmError, match="mount cannot be executed: No such file or directory"):
        shm.mount(tmp_path / "shm")


def test_size_counts_what_would_be_written(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "a").write_bytes(b"x" * 1000)
    with (tmp_path / "below/sparse").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "again").hardlink_to(tmp_path / "a")
    assert shm.size(tmp_path) == sum((tmp_path / name).stat().st_blocks for name in ("a", "below/sparse")) * 512 < 65536


def test_what_comes_late_is_added_at_the_end(source: Path, target: Path, tmp_path: Path) -> None:
    """CRIU's names, which are given while the rest is copied; some are second names of what has been copied."""
    (source / "a").write_bytes(b"a")
    with (source / "holes").open("wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 29)
        file.write(b"data")
    (source / "late.0").write_bytes(b"there before")
    copy = shm.Copy(source, tmp_path / "a.tar", lambda name: name.startswith("late."))
    copy.begin()
    (source / "late.1").hardlink_to(source / "a")
    (source / "late.2").write_bytes(b"its own")
    assert copy.finish() is True
    copy.close()
    assert (tmp_path / "a.tar").stat().st_size < 1 << 20
    shm.fill(target, tmp_path / "a.tar")
    assert sorted(os.listdir(target)) == ["a", "holes", "late.0", "late.1", "late.2"]
    assert (target / "late.1").samefile(target / "a")
    assert (target / "late.2").read_bytes() == b"its own"
    with (target / "holes").open("rb") as file:
        file.seek(1 << 29)
        assert (file.read(5), os.fstat(file.fileno()).st_size) == (b"data\0", 1 << 30)
    assert (target / "holes").stat().st_blocks < 1000


def test_a_copy_that_is_given_up_leaves_no_descriptor_open(source: Path, tmp_path: Path) -> None:
    (source / "a").write_bytes(b"a")
    before = os.listdir("/proc/self/fd")
    copy = shm.Copy(source, tmp_path / "a.tar")
    copy.begin()
    copy.close()
    assert os.listdir("/proc/self/fd") == before
