"""Files that a job only reads: saved where they may be gone at the restore, and made anew only where they are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt.capture.inspect.mounts import Mount
from slurmckpt.config import Files
from slurmckpt.coordinator.files import reading, saving
from slurmckpt.coordinator.files.rules import Pod
from slurmckpt.errors import Refused
from slurmckpt.filerules import FileRule
from slurmckpt.store.identity import UserFiles
from tests.unit.coordinator.files.filejob import ME, TEN, Job, next_moment, policies

LARGE = b"large" * 300_000  # above what is copied while the ranks stand still


@pytest.fixture
def job(home: Path, tmp_path: Path, user_files: UserFiles) -> Iterator[Job]:
    job = Job(home, tmp_path / "staging", user_files)
    with job.descriptors:
        yield job


@pytest.mark.parametrize("data", [TEN, LARGE, b""], ids=["small", "large", "empty"])
def test_it_is_made_anew_where_it_is_gone(job: Job, data: bytes) -> None:
    (job.home / "sub").mkdir()
    os.chown(job.home / "sub", *ME)
    path = job.has_read(job.write("sub/input", data))
    path.chmod(0o750)
    before = os.stat(path)
    assert policies(job.save()) == {"input": "read"} and not job.left
    shutil.rmtree(path.parent)
    job.bring_back()
    now = os.stat(path)
    assert path.read_bytes() == data
    assert (now.st_mode, now.st_uid, now.st_mtime_ns) == (before.st_mode, before.st_uid, before.st_mtime_ns)
    assert job.traces.files == [str(path)] and job.traces.parents == [str(path.parent)]


def test_what_is_deleted_as_soon_as_the_ranks_run_again_is_saved(job: Job) -> None:
    small, large = (job.has_read(job.write(name, data)) for name, data in (("small", TEN), ("large", LARGE)))

    def deleted() -> None:
        small.unlink()
        large.unlink()

    job.save(deleted)
    job.bring_back()
    assert (small.read_bytes(), large.read_bytes()) == (TEN, LARGE)


def test_what_is_written_as_soon_as_the_ranks_run_again_is_not_saved(job: Job) -> None:
    """It is only copied then. A small one was copied before."""
    small, large = (job.has_read(job.write(name, data)) for name, data in (("small", TEN), ("large", LARGE)))

    def written() -> None:
        small.write_bytes(b"other")
        large.write_bytes(b"other" * 300_000)

    assert policies(job.save(written)) == {"small": "read"}
    assert f"{large} (1.5 MB), which the job reads and which are on this node only" in job.left


def test_what_is_there_is_left_alone(job: Job) -> None:
    path = job.has_read(job.write("input"))
    before = os.stat(path)
    job.save()
    job.bring_back()
    os.utime(path, (1, 1))
    job.bring_back()
    now = os.stat(path)
    assert (now.st_ino, now.st_mtime) == (before.st_ino, 1)
    # Another file with the same content does as well.
    path.unlink()
    job.write("input")
    job.bring_back()
    assert not job.traces.files


@pytest.mark.parametrize("data", [b"9876543210", b"0123456789+", b""], ids=["same size", "longer", "empty"])
@pytest.mark.parametrize("anew", [True, False])
def test_what_is_there_with_other_content_is_refused_and_left_alone(job: Job, data: bytes, anew: bool) -> None:
    path = job.has_read(job.write("input"))
    job.save()
    if anew:
        path.unlink()
    job.write("input", data)
    with pytest.raises(Refused) as raised:
        job.bring_back()
    assert str(raised.value) == f"{path}, open for reading at the checkpoint, has other content now"
    assert path.read_bytes() == data


@pytest.mark.parametrize("kind", ["link", "directory", "pipe"])
def test_what_is_no_file_is_refused_and_left_alone(job: Job, kind: str, tmp_path: Path) -> None:
    """A link is not followed, also to a file with the right content."""
    path = job.has_read(job.write("input"))
    job.save()
    path.unlink()
    other = tmp_path / "other"
    other.write_bytes(TEN)
    if kind == "link":
        path.symlink_to(other)
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(Refused, match=r"/input, open for reading at the checkpoint, has other content now"):
        job.bring_back()
    assert other.read_bytes() == TEN


def test_nothing_is_made_through_a_link_where_the_user_may_not(job: Job) -> None:
    (job.home / "sub").mkdir()
    os.chown(job.home / "sub", *ME)
    path = job.has_read(job.write("sub/input"))
    job.save()
    shutil.rmtree(path.parent)
    path.parent.symlink_to("/var")
    with pytest.raises(Refused, match=r"/input, open for reading at the checkpoint, is gone, and cannot be made anew"):
        job.bring_back()
    assert not Path("/var/input").exists()


def test_what_all_nodes_see_is_saved_only_when_it_was_made_since_the_job_began(
    home: Path, user_files: UserFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("slurmckpt.coordinator.files.reading._TEMPORARY", ("/nowhere/",))
    job = Job(home, tmp_path / "staging", user_files)
    with job.descriptors:
        job.shared = {os.stat(home).st_dev}
        job.has_read(job.write("old"))
        assert policies(job.save()) == {}
        job.since = next_moment(home / "old")
        job.has_read(job.write("young"))
        shutil.rmtree(job.staging)
        assert policies(job.save()) == {"young": "read"}
        # Others are missed only on this node, and so is nothing here.
        job.settings = Files(max_read=0)
        shutil.rmtree(job.staging)
        assert policies(job.save()) == {} and not job.left


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to have files of another user")
def test_what_is_not_the_users_is_told_where_it_lies_in_tmp(
    home: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / "others"
    path.write_bytes(TEN)
    path.chmod(0o644)
    job.has_read(path)
    monkeypatch.setattr("slurmckpt.coordinator.files.reading._TEMPORARY", ("/nowhere/",))
    assert policies(job.save()) == {} and not job.left
    shutil.rmtree(job.staging)
    monkeypatch.setattr("slurmckpt.coordinator.files.reading._TEMPORARY", (f"{home}/",))
    assert policies(job.save()) == {} and f"will need {path} (10 B), which" in job.left


def test_what_does_not_fit_is_left_and_told(job: Job) -> None:
    """Beginning with the largest, and those above the limit for each anyway."""
    for number in range(1, 6):
        job.has_read(job.write(f"file{number}", b"x" * 10 * number))
    job.settings = Files(max_read=80, max_read_each=40)
    assert policies(job.save()) == {"file1": "read", "file2": "read", "file3": "read"}
    assert job.left == (
        f"a restore on another node will need {job.home}/file5 (50 B), {job.home}/file4 (40 B), which the job reads and"
        " which are on this node only: put them where all nodes see them, or let the site carry their directory"
        " (files.carry) or save more (files.max_read)"
    )
    assert job.foresee() == 60


def test_what_comes_back_in_another_way_is_not_saved_twice(job: Job) -> None:
    """With its directory, as the batch script, by a rule of the site's, in CRIU's image, or by whoever else."""
    (job.home / "carried").mkdir()
    names = ("carried/in", "kept", "removed", "script", "output", "carried.txt")
    paths = {name: job.has_read(job.write(name)) for name in names}
    output = paths["output"].stat()
    paths["removed"].unlink()
    job.settings = Files(rules=(FileRule("~/kept", "keep"),))
    found = reading.find(
        [Pod(job.scan(), -1, 0, mounts=[Mount("ext4", "", "/")])],
        job.rules(),
        {(output.st_dev, output.st_ino)},
        [str(job.home / "carried")],
        [str(paths["script"])],
    )
    assert [one.path for each in found.wanted for one in each] == [str(paths["carried.txt"])] and not found.left


def test_a_file_with_two_names_is_saved_once(job: Job) -> None:
    path = job.has_read(job.write("one"))
    os.link(path, job.home / "two")
    job.has_read(job.home / "two")
    assert policies(job.save()) == {"one": "read", "two": "read"}
    assert (job.staging / saving.CONTENT).stat().st_size == 4096
    path.unlink()
    (job.home / "two").unlink()
    job.bring_back()
    assert path.read_bytes() == TEN and (job.home / "two").read_bytes() == TEN


def test_one_that_has_lost_its_place_to_another_is_not_saved(job: Job) -> None:
    path = job.has_read(job.write("input"))
    os.link(path, job.home / "other")
    path.unlink()
    job.write("input", b"another")
    assert policies(job.save()) == {}
