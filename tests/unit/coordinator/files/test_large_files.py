"""What does not fit into a checkpoint, and how large files are copied."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Literal

import pytest

from slurmckpt.capture.inspect.descriptors import Writing
from slurmckpt.config import Files
from slurmckpt.coordinator.files import content, saving
from slurmckpt.errors import Refused
from slurmckpt.store.identity import UserFiles
from tests.unit.coordinator.files.filejob import TEN, Job, policies


@pytest.fixture
def job(home: Path, tmp_path: Path, user_files: UserFiles) -> Job:
    return Job(home, tmp_path / "staging", user_files)


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
