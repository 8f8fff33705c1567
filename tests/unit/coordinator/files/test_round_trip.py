"""Files of a job from the boundary to the restore: saved, changed in every way, and brought back."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurmckpt.capture.inspect.descriptors import Writing
from slurmckpt.config import Files
from slurmckpt.coordinator.files import content, putting_back, saving
from slurmckpt.errors import Refused, SlurmckptError
from slurmckpt.filerules import FileRule
from slurmckpt.store.identity import UserFiles
from tests.unit.coordinator.files.filejob import ME, TEN, Job, policies


@pytest.fixture
def job(home: Path, tmp_path: Path, user_files: UserFiles) -> Job:
    return Job(home, tmp_path / "staging", user_files)


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


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of another user")
@pytest.mark.parametrize("mode", [0o444, 0o400])
def test_a_file_that_nobody_may_write_is_its_owners(job: Job, mode: int) -> None:
    """As `cp` and git make what is to be read-only: open for writing, with such a mode from the beginning."""
    path, log = job.opens(job.write("data")), job.logs(job.write("log"))
    for each in (path, log):
        each.chmod(mode)
    job.save()
    path.write_bytes(b"new")
    log.write_bytes(TEN + b"more")
    inodes = [each.stat().st_ino for each in (path, log)]
    job.bring_back()
    for each, inode in zip((path, log), inodes, strict=True):
        assert each.read_bytes() == TEN
        assert (stat.S_IMODE(each.stat().st_mode), each.stat().st_ino) == (mode, inode)


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


def test_a_named_pipe_that_is_gone_is_made_anew(job: Job) -> None:
    """As make's job server has one in /tmp. What is there is left as it is, and what cannot be made is not our word."""
    pipes = [job.home / name for name in ("gone", "below/gone", "there", "in the way")]
    pipes[1].parent.mkdir()
    os.chown(pipes[1].parent, *ME)
    for pipe in pipes:
        job.pipes(pipe)
    assert policies(job.save()) == dict.fromkeys(("gone", "there", "in the way"), "pipe")
    there = pipes[2].stat()
    shutil.rmtree(pipes[1].parent)
    for pipe in (pipes[0], pipes[3]):
        pipe.unlink()
    pipes[3].write_text("mine")
    job.bring_back()
    for pipe in pipes[:2]:
        status = pipe.stat()
        assert stat.S_ISFIFO(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o620
        assert (status.st_uid, status.st_gid) == ME
    assert pipes[2].stat() == there
    assert pipes[3].read_text() == "mine"
    assert job.traces.files == [str(pipe) for pipe in pipes[:2]]
    assert job.traces.parents == [str(pipes[1].parent)]


def test_a_named_pipe_where_the_user_may_not_make_one_is_left_to_criu(job: Job) -> None:
    (job.home / "closed").mkdir()
    job.pipes(job.home / "closed/pipe")
    job.save()
    (job.home / "closed/pipe").unlink()
    (job.home / "closed").chmod(0o555)
    job.bring_back()
    assert not (job.home / "closed/pipe").exists() and not job.traces.files
