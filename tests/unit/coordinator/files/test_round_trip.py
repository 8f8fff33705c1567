"""Files of a job from the boundary to the restore: saved, changed in every way, and brought back."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from slurmckpt.capture.inspect.descriptors import Writing
from slurmckpt.capture.preflight import OpenFile, PodScan
from slurmckpt.config import Files
from slurmckpt.coordinator.files import content, putting_back, saving
from slurmckpt.coordinator.files.putting_back import Place, Traces
from slurmckpt.coordinator.files.rules import Rules
from slurmckpt.coordinator.files.saving import PodFiles, Saver
from slurmckpt.errors import Refused, SlurmckptError
from slurmckpt.filerules import FileRule
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.manifest import CarriedDirectory
from tests.unit.coordinator.parts import GID, UID, no_descriptor_is_lost

ME = (UID, GID) if os.geteuid() == 0 else (os.getuid(), os.getgid())
TEN = b"0123456789"


class Job:
    """A job that writes files below its home, without any process: what a look at it would find is made up."""

    def __init__(self, home: Path, staging: Path, files: UserFiles) -> None:
        self.home = home
        self.staging = staging
        self.files = files
        self.settings = Files()
        self.open: dict[Path, tuple[Writing, bool]] = {}
        self.saved = PodFiles()
        self.carried: list[CarriedDirectory] = []
        self.traces = Traces()

    def write(self, name: str, data: bytes = TEN) -> Path:
        path = self.home / name
        path.write_bytes(data)
        os.chown(path, *ME)
        return path

    def opens(self, path: Path, writing: Writing = Writing.ANYWHERE, mapped: bool = False) -> Path:
        self.open[path] = (writing, mapped)
        return path

    def logs(self, path: Path) -> Path:
        """One that is only cut back."""
        self.settings = replace(self.settings, rules=(*self.settings.rules, FileRule(str(path), "truncate")))
        return self.opens(path, Writing.APPENDED)

    def scan(self) -> PodScan:
        found = []
        for path, (writing, mapped) in self.open.items():
            status = os.stat(path)
            found.append(
                OpenFile(
                    str(path),
                    status.st_size,
                    status.st_mode,
                    os.O_RDWR,
                    os.getpid(),
                    3,
                    status.st_dev,
                    status.st_ino,
                    writing,
                    mapped,
                    status.st_mtime_ns,
                )
            )
        return PodScan([], [], found, [], [], [], [])

    def rules(self) -> Rules:
        return Rules(self.settings, ME[0], str(self.home), self.staging)

    def save(self, meanwhile: Callable[[], None] = lambda: None) -> PodFiles:
        async def scene() -> None:
            saver = Saver(self.rules(), self.staging, self.files)
            try:
                self.saved = (await saver.save([os.getpid()], [self.scan()], set()))[0]
                meanwhile()
                await saver.finish()
                self.carried = saver.carried
            finally:
                await saver.close()

        self.staging.mkdir(exist_ok=True)
        with no_descriptor_is_lost():
            asyncio.run(scene())
        return self.saved

    def foresee(self) -> int:
        return asyncio.run(saving.foresee([os.getpid()], [self.scan()], self.rules(), self.files))

    def bring_back(self) -> None:
        root = os.open("/", os.O_PATH)
        source = -1
        try:
            if (self.staging / saving.CONTENT).exists():
                source = os.open(self.staging / saving.CONTENT, os.O_RDONLY)
            place = Place(root, source, ME[0], self.traces.files, self.traces.parents)
            self.files.run_sync(putting_back.bring_back, self.saved.open_files, self.saved.absent, place)
        finally:
            os.close(root)
            if source >= 0:
                os.close(source)


@pytest.fixture
def job(home: Path, tmp_path: Path, user_files: UserFiles) -> Job:
    return Job(home, tmp_path / "staging", user_files)


def policies(saved: PodFiles) -> dict[str, str]:
    return {Path(file.path).name: file.policy for file in saved.open_files}


def test_what_is_done_with_each_file_unless_the_site_says_otherwise(job: Job) -> None:
    large = b"x" * (17 << 20)
    for writing in Writing:
        job.opens(job.write(f"small {writing.name}"), writing)
        job.opens(job.write(f"large {writing.name}", large), writing)
    assert policies(job.save()) == {
        # What is written anew again and again is small; what grows and grows is not.
        "small APPENDED": "save",
        "large APPENDED": "truncate",
        "small ONWARDS": "save",
        "large ONWARDS": "truncate",
        "small ONWARDS_AND_READ": "save",
        "large ONWARDS_AND_READ": "save",
        "small ANYWHERE": "save",
        "large ANYWHERE": "save",
    }


def test_a_file_with_two_names_is_one_file(job: Job) -> None:
    path = job.opens(job.write("data"), Writing.APPENDED)
    os.link(path, job.home / "other")
    job.opens(job.home / "other", Writing.ANYWHERE)
    assert policies(job.save()) == {"data": "save", "other": "save"}
    assert (job.staging / saving.CONTENT).stat().st_size == 4096
    path.write_bytes(b"new")
    job.bring_back()
    assert path.read_bytes() == TEN and path.stat().st_nlink == 2


def test_the_first_rule_that_fits_counts(job: Job) -> None:
    rules = (FileRule("~/*.log", "truncate"), FileRule("~/x*", "keep"), FileRule("/**/s*", "save"))
    job.settings = Files("auto", rules)
    for name in ("a.log", "x.log", "xyz", "sum", "other"):
        job.opens(job.write(name), Writing.APPENDED if name == "sum" else Writing.ANYWHERE)
    assert policies(job.save()) == {
        "a.log": "truncate",
        "x.log": "truncate",
        "xyz": "keep",
        "sum": "save",
        "other": "save",
    }


@pytest.mark.parametrize(
    "after",
    [b"", b"0123", b"x123456789", b"0123456789+", b"y" * 100],
    ids=["empty", "shorter", "same size", "longer", "new"],
)
def test_a_file_that_was_rewritten_in_place(job: Job, after: bytes) -> None:
    """Its inode, and so its other names, stay."""
    path = job.opens(job.write("data"))
    path.chmod(0o640)
    os.link(path, job.home / "other name")
    before = os.stat(path)
    job.save()
    path.write_bytes(after)
    path.chmod(0o600)
    job.bring_back()
    assert path.read_bytes() == TEN
    now = os.stat(path)
    assert (now.st_ino, now.st_mode, now.st_nlink, now.st_mtime_ns) == (
        before.st_ino,
        before.st_mode,
        2,
        before.st_mtime_ns,
    )


def test_a_file_that_is_as_it_was_is_not_written(job: Job) -> None:
    path = job.opens(job.write("data"))
    job.save()
    path.chmod(0o400)
    saved = job.saved.open_files[0]
    job.saved.open_files[0] = type(saved)(**{**vars(saved), "mode": 0o400})
    job.bring_back()
    assert path.read_bytes() == TEN


def test_a_file_that_has_vanished_is_made_anew(job: Job) -> None:
    path = job.opens(job.write("data"))
    path.chmod(0o640)
    before = os.stat(path)
    job.save()
    path.unlink()
    job.bring_back()
    now = os.stat(path)
    assert path.read_bytes() == TEN
    assert (now.st_uid, now.st_gid, now.st_mode, now.st_mtime_ns) == (*ME, before.st_mode, before.st_mtime_ns)
    assert os.listdir(job.home) == ["data"]


def test_a_file_whose_directories_have_vanished_is_made_anew(job: Job) -> None:
    """As those that a JVM makes in the node's own /tmp."""
    (job.home / "a" / "b").mkdir(parents=True)
    path = job.opens(job.write("a/b/data"))
    job.save()
    path.unlink()
    (job.home / "a" / "b").rmdir()
    (job.home / "a").rmdir()
    job.bring_back()
    assert path.read_bytes() == TEN
    assert [stat.S_IMODE((job.home / name).stat().st_mode) for name in ("a", "a/b")] == [0o700, 0o700]
    asyncio.run(putting_back.take_away(os.getpid(), ME[0], job.files, job.traces))
    assert os.listdir(job.home) == []


def test_a_file_that_was_replaced_comes_back_under_its_name_only(job: Job) -> None:
    """What lies there now may have another name by which it must stay what it is."""
    path = job.opens(job.write("data"))
    job.save()
    path.rename(job.home / "moved")
    job.write("data", b"another file")
    os.link(path, job.home / "another")
    job.bring_back()
    assert path.read_bytes() == TEN
    assert (job.home / "another").read_bytes() == b"another file"
    inode = path.stat().st_ino
    # The second pod that had it open finds it as it should be: the first may have it open already.
    job.bring_back()
    assert path.stat().st_ino == inode


def test_what_was_made_anew_is_taken_away_when_the_restore_fails(job: Job) -> None:
    """The script that begins anew then would not expect it."""
    gone, changed, replaced = (job.opens(job.write(name)) for name in ("gone", "changed", "replaced"))
    job.save()
    gone.unlink()
    changed.write_bytes(b"new")
    replaced.unlink()
    job.write("replaced", b"new")
    job.bring_back()
    assert sorted(os.listdir(job.home)) == ["changed", "gone", "replaced"]
    asyncio.run(putting_back.take_away(os.getpid(), ME[0], job.files, job.traces))
    assert sorted(os.listdir(job.home)) == ["changed", "replaced"]


def test_a_link_in_the_place_of_a_saved_file_is_not_followed(job: Job) -> None:
    path, precious = job.opens(job.write("data")), job.write("precious", b"precious")
    job.save()
    path.unlink()
    path.symlink_to(precious)
    job.bring_back()
    assert (path.read_bytes(), precious.read_bytes()) == (TEN, b"precious")
    assert not path.is_symlink()


def test_a_directory_in_the_place_of_a_saved_file(job: Job) -> None:
    path = job.opens(job.write("data"))
    job.save()
    path.unlink()
    path.mkdir()
    with pytest.raises(Refused, match=r"/data, open for writing at the checkpoint, is no regular file any more$"):
        job.bring_back()


def test_a_file_is_not_made_anew_where_its_user_may_not(job: Job) -> None:
    (job.home / "sub").mkdir()
    path = job.opens(job.write("sub/data"))
    job.save()
    path.unlink()
    path.parent.rmdir()
    job.home.chmod(0o500)
    try:
        with pytest.raises(Refused, match=r"/sub/data, open for writing at the checkpoint, is gone, and cannot"):
            job.bring_back()
    finally:
        job.home.chmod(0o700)


def test_nothing_is_changed_when_one_cannot_be_brought_back(job: Job) -> None:
    first, log = job.opens(job.write("data")), job.logs(job.write("log"))
    job.save()
    first.write_bytes(b"new")
    log.write_bytes(b"")
    with pytest.raises(Refused, match=r"/log is shorter \(0 bytes\) than at the checkpoint \(10 bytes\)$"):
        job.bring_back()
    assert first.read_bytes() == b"new"


def test_a_log_that_was_rotated_is_refused(job: Job) -> None:
    log = job.logs(job.write("log"))
    job.save()
    log.rename(job.home / "log.1")
    job.write("log", b"the next log, and longer than the first")
    with pytest.raises(Refused, match=r"/log has been replaced by another file of that name since the checkpoint$"):
        job.bring_back()


def test_a_kept_file_may_have_changed_but_must_be_there(job: Job) -> None:
    job.settings = Files("keep")
    path = job.opens(job.write("data"))
    job.save()
    path.unlink()
    job.write("data", b"new")
    job.bring_back()
    assert path.read_bytes() == b"new"
    path.unlink()
    with pytest.raises(Refused, match=r"/data, open for writing at the checkpoint, is gone$"):
        job.bring_back()


def old(path: Path) -> Path:
    os.utime(path, (1e9, 1e9))
    return path


def test_what_does_not_fit_is_left_out_when_nobody_has_written_it(job: Job) -> None:
    job.settings = Files(max_save=30)
    large, small = job.opens(old(job.write("large", b"x" * 100))), job.opens(job.write("small"))
    assert job.foresee() == 10
    assert policies(job.save()) == {"large": "unchanged", "small": "save"}
    small.write_bytes(b"other")
    job.bring_back()
    assert small.read_bytes() == TEN
    with large.open("r+b") as file:
        file.write(b"y")
    with pytest.raises(Refused, match=r"/large has been written since the checkpoint, and was too large to be saved"):
        job.bring_back()


def test_what_does_not_fit_and_was_written_is_refused(job: Job) -> None:
    job.settings = Files(max_save=30)
    path = job.opens(job.write("large", b"x" * 100))
    job.opens(job.write("small"))
    with pytest.raises(Refused) as raised:
        job.foresee()
    assert str(raised.value) == (
        f"process {os.getpid()} writes {path} in place, and no more than 30 B of such files is saved: raise"
        " files.max_save, or give it another policy in files.rules"
    )
    with pytest.raises(Refused):
        job.save()


def test_what_does_not_fit_is_cut_where_it_seems_to_grow_only(job: Job) -> None:
    """As the output of a Fortran program, which opens it for reading, too. What is changed in it is mostly seen."""
    job.settings = Files(max_save=300_000)
    log = job.opens(job.write("log", os.urandom(400_000)), Writing.ONWARDS_AND_READ)
    job.opens(job.write("data"))
    before = log.read_bytes()
    assert policies(job.save()) == {"log": "truncate", "data": "save"}
    log.write_bytes(before + b"more")
    job.bring_back()
    assert log.read_bytes() == before
    for place in (0, 191_808, 399_990):
        changed = bytearray(before)
        changed[place : place + 5000] = bytes(len(changed[place : place + 5000]))
        log.write_bytes(changed + b"more")
        with pytest.raises(Refused, match=r"/log has been changed before its end since the checkpoint, which has its"):
            job.bring_back()


@pytest.mark.parametrize("policy", ["save", "auto"])
def test_what_does_not_fit_and_may_not_be_cut(job: Job, policy: Literal["save", "auto"]) -> None:
    job.settings = Files(policy, max_save=30)
    job.opens(job.write("log", b"x" * 40), Writing.ONWARDS if policy == "save" else Writing.ANYWHERE)
    with pytest.raises(Refused, match=r"and no more than 30 B of such files is saved"):
        job.save()


def test_a_log_that_was_begun_again(job: Job) -> None:
    """What is longer than it was need not begin with what it was."""
    log = job.logs(job.write("log"))
    job.save()
    log.write_bytes(b"a new log, which is longer")
    with pytest.raises(Refused, match=r"/log has been changed before its end since the checkpoint"):
        job.bring_back()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: rights of another user")
def test_a_log_that_its_user_may_not_read(job: Job) -> None:
    log = job.opens(job.write("log"), Writing.ONWARDS)
    log.chmod(0o200)
    assert policies(job.save()) == {"log": "truncate"}
    with log.open("ab") as file:
        file.write(b"more")
    job.bring_back()
    log.chmod(0o600)
    assert log.read_bytes() == TEN


def test_holes_stay_holes(job: Job) -> None:
    path = job.opens(job.write("sparse", b""))
    with path.open("r+b") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(TEN)
    job.save()
    assert (job.staging / saving.CONTENT).stat().st_blocks < 1 << 14
    path.unlink()
    job.bring_back()
    assert path.stat().st_size == 64 << 20 and path.stat().st_blocks * 512 < 16 << 20
    with path.open("rb") as file:
        file.seek(32 << 20)
        assert file.read(10) == TEN
    # And what was written into a hole is gone again.
    with path.open("r+b") as file:
        file.seek(50 << 20)
        file.write(b"new")
    job.bring_back()
    with path.open("rb") as file:
        file.seek(50 << 20)
        assert file.read(3) == b"\0\0\0"


def test_a_clone_is_what_the_file_was_when_the_ranks_stood_still(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that can clone: here a copy stands for it."""
    monkeypatch.setattr(saving, "_CLONE_BYTES", 1)

    def ioctl(target: int, request: int, source: int) -> None:
        assert request == 0x40049409
        os.write(target, os.pread(source, 100, 0))

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    path = job.opens(job.write("data"))

    def meanwhile() -> None:
        path.write_bytes(b"after")

    job.save(meanwhile)
    job.bring_back()
    assert path.read_bytes() == TEN
    assert os.listdir(job.home) == ["data"]


def test_a_file_system_that_cannot_clone(job: Job) -> None:
    descriptor = os.open(job.write("data"), os.O_RDONLY)
    root = os.open("/proc", os.O_PATH)
    try:
        assert content.clone(descriptor, "", root) is None
    finally:
        os.close(root)
        os.close(descriptor)


def test_a_file_that_changes_while_it_is_saved(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    path = job.opens(job.write("data"))
    real = content.copy

    def copy(source: int, target: int, offset: int, size: int, go_on: Callable[[], None]) -> None:
        real(source, target, offset, size, go_on)
        path.write_bytes(b"other")

    monkeypatch.setattr(content, "copy", copy)
    with pytest.raises(SlurmckptError, match=r"/data is written from outside the job's pods while it is saved$"):
        job.save()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: rights of another user")
def test_a_file_that_the_user_may_not_read_any_more(job: Job) -> None:
    path = job.opens(job.write("data"))
    path.chmod(0)
    with pytest.raises(SlurmckptError, match=r"/data is written in place and cannot be saved .*: Permission denied$"):
        job.save()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: rights of another user")
def test_a_vanished_file_of_another_user(job: Job) -> None:
    path = job.opens(job.write("data"))
    path.chmod(0o666)
    os.chown(path, 0, 0)
    job.save()
    path.write_bytes(b"new")
    job.bring_back()
    assert path.read_bytes() == TEN
    path.unlink()
    with pytest.raises(Refused, match=r"/data, open for writing at the checkpoint, is gone, and was another user's$"):
        job.bring_back()


def database(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"pragma journal_mode={mode}")
    connection.execute("create table rows (number integer)")
    connection.execute("insert into rows values (1)")
    return connection


def rows(path: Path) -> list[int]:
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        return [number for (number,) in connection.execute("select number from rows order by number")]
    finally:
        connection.close()


def owned(paths: Sequence[Path]) -> None:
    for path in paths:
        os.chown(path, *ME)


def test_the_journal_of_a_later_transaction_goes(job: Job) -> None:
    """It would be rolled back, into a database that never had that transaction."""
    path = job.home / "run.db"
    connection = database(path, "delete")
    owned([path])
    job.opens(path)
    saved = job.save()
    assert saved.absent == [f"{path}{suffix}" for suffix in ("-journal", "-wal", "-shm")]
    # A crash in the middle of the next transaction: its journal stays.
    connection.execute("pragma cache_size=1")
    connection.execute("begin")
    for number in range(2, 3000):
        connection.execute("insert into rows values (?)", (number,))
    later = {each.name: each.read_bytes() for each in job.home.iterdir()}
    connection.close()
    for name, data in later.items():
        job.write(name, data)
    assert Path(f"{path}-journal").stat().st_size > 0
    job.bring_back()
    assert os.listdir(job.home) == ["run.db"]
    assert rows(path) == [1]


def test_a_log_that_was_written_back_and_removed_is_there_again(job: Job) -> None:
    path = job.home / "run.db"
    connection = database(path, "wal")
    names = [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")]
    owned(names)
    for name in names:
        job.opens(name)
    assert policies(job.save()) == {"run.db": "save", "run.db-wal": "save", "run.db-shm": "save"}
    assert job.saved.absent == [f"{path}-journal"]
    connection.execute("insert into rows values (2)")
    connection.close()
    assert os.listdir(job.home) == ["run.db"]
    job.bring_back()
    assert all(stat.S_ISREG(name.stat().st_mode) and name.stat().st_uid == ME[0] for name in names)
    assert rows(path) == [1]


def test_a_journal_that_nobody_has_open_and_that_is_too_large(job: Job) -> None:
    path = job.home / "run.db"
    connection = database(path, "persist")
    connection.close()
    owned([path])
    job.opens(path)
    journal = job.write("run.db-journal")
    os.truncate(journal, 1 << 40)
    with pytest.raises(SlurmckptError, match=r"/run.db-journal and what else is written in place is more than may be"):
        job.save()


def test_a_journal_that_nobody_has_open_is_saved_too(job: Job) -> None:
    path = job.home / "run.db"
    connection = database(path, "persist")
    journal = Path(f"{path}-journal")
    owned([path, journal])
    job.opens(path)
    before = journal.read_bytes()
    assert policies(job.save()) == {"run.db": "save", "run.db-journal": "save"}
    connection.execute("insert into rows values (2)")
    connection.close()
    journal.write_bytes(b"later")
    job.bring_back()
    assert journal.read_bytes() == before
    assert rows(path) == [1]


@pytest.fixture(params=["xfs", "btrfs"])
def cloning(request: pytest.FixtureRequest, job: Job, tmp_path: Path) -> Iterator[Job]:
    """The job's home on a file system that can clone."""
    kind = request.param
    if os.geteuid() != 0 or shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"needs root and mkfs.{kind}")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(512 << 20)
    subprocess.run([f"mkfs.{kind}", "-q", str(image)], check=True, capture_output=True)
    if subprocess.run(["mount", "-o", "loop", image, job.home], check=False, capture_output=True).returncode:
        pytest.skip(f"{kind} cannot be mounted from a file here")
    os.chown(job.home, *ME)
    yield job
    subprocess.run(["umount", job.home], check=True)


def test_a_real_clone(cloning: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    clones: list[int | None] = []
    real = content.clone

    def clone(source: int, directory: str, root: int) -> int | None:
        clones.append(real(source, directory, root))
        return clones[-1]

    monkeypatch.setattr(content, "clone", clone)
    data = os.urandom(1 << 20) * 20
    path = cloning.opens(cloning.write("data", data))
    assert cloning.foresee() == len(data)

    def meanwhile() -> None:
        with path.open("r+b") as file:
            file.write(b"after")

    cloning.save(meanwhile)
    # Once beforehand, once at the boundary.
    assert len(clones) == 2 and None not in clones
    cloning.bring_back()
    assert path.read_bytes() == data
    assert os.listdir(cloning.home) == ["data"]
