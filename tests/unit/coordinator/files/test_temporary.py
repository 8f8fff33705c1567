"""What a job has put into the node's temporary directories, and has not open."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt.capture.inspect.mounts import Mount
from slurmckpt.config import Files
from slurmckpt.coordinator import company
from slurmckpt.coordinator.files import temporary
from slurmckpt.coordinator.files.rules import Pod
from slurmckpt.errors import Refused
from slurmckpt.filerules import FileRule
from slurmckpt.store.identity import UserFiles
from tests.unit.coordinator.files.filejob import ME, TEN, Job, next_moment, policies

LARGE = b"large" * 300_000


@pytest.fixture
def job(home: Path, tmp_path: Path, user_files: UserFiles, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """It began before all that a test makes, and its home is the only temporary directory."""
    job = Job(home, tmp_path / "staging", user_files)
    job.since = 0
    monkeypatch.setattr(temporary, "DIRECTORIES", (str(home),))
    monkeypatch.setattr(company, "is_alone", lambda *_: True)
    with job.descriptors:
        yield job


def directory(job: Job, name: str, mode: int = 0o700) -> Path:
    path = job.home / name
    path.mkdir(parents=True)
    os.chown(path, *ME)
    path.chmod(mode)
    return path


def below(job: Job) -> dict[str, str]:
    """What was saved, without the home itself."""
    return {name: policy for name, policy in policies(job.save()).items() if name != job.home.name}


def test_files_and_directories_are_made_anew_where_they_are_gone(job: Job) -> None:
    directory(job, "sub", 0o750)
    directory(job, "sub/closed", 0o500)
    directory(job, "empty", 0o711)
    files = {"one": TEN, "sub/two": LARGE, "sub/closed/three": b""}
    for name, data in files.items():
        job.write(name, data).chmod(0o640)
    before = {path: path.stat() for path in job.home.rglob("*")}
    names = {"one": "temporary", "two": "temporary", "three": "temporary"}
    assert below(job) == names | {"sub": "directory", "closed": "directory", "empty": "directory"}
    assert not job.left
    (job.home / "sub/closed").chmod(0o700)
    for name in ("sub", "empty"):
        shutil.rmtree(job.home / name)
    (job.home / "one").unlink()
    job.bring_back()
    assert {name: (job.home / name).read_bytes() for name in files} == files
    for path, status in before.items():
        assert path.stat().st_mode == status.st_mode, path
    # A restore that fails leaves nothing of it.
    assert sorted(job.traces.files) == sorted(str(job.home / name) for name in files)
    assert sorted(job.traces.parents) == sorted(str(job.home / name) for name in ("sub", "sub/closed", "empty"))


def test_what_is_there_is_left_alone(job: Job) -> None:
    directory(job, "sub")
    job.write("sub/file")
    job.write("other")
    job.save()
    job.write("sub/file", b"of another")
    (job.home / "other").unlink()
    (job.home / "other").symlink_to("/nowhere")
    (job.home / "sub").chmod(0o755)
    job.bring_back()
    assert (job.home / "sub/file").read_bytes() == b"of another"
    assert (job.home / "other").is_symlink()
    assert stat.S_IMODE((job.home / "sub").stat().st_mode) == 0o755
    assert not job.traces.files and not job.traces.parents


def test_nothing_is_made_where_the_user_may_not(job: Job) -> None:
    directory(job, "sub")
    job.write("sub/file")
    job.save()
    shutil.rmtree(job.home / "sub")
    (job.home / "sub").symlink_to("/var")
    with pytest.raises(Refused, match=r"/sub/file, in a temporary directory at the checkpoint, is gone, and cannot be"):
        job.bring_back()
    assert not Path("/var/file").exists()


def test_what_is_older_than_the_job_is_not_its_own(job: Job) -> None:
    directory(job, "old directory")
    job.write("old")
    job.since = next_moment(job.home / "old")
    job.write("old directory/young")
    job.write("young")
    os.utime(job.write("touched"), (1, 1))
    assert below(job) == {"young": "temporary", "touched": "temporary", "old directory": "directory"} | {
        "young": "temporary"
    }


def link(job: Job, name: str, leads_to: str) -> Path:
    path = job.home / name
    path.symlink_to(leads_to)
    os.chown(path, *ME, follow_symlinks=False)
    return path


def test_links_are_made_anew_and_never_followed(job: Job) -> None:
    """Those that lead nowhere, to what only root may see, or in a circle; with odd names; in a closed directory."""
    directory(job, "sub")
    links = {
        "one": "file",
        "sub/up": "../file",
        "sub/a\nb\udcff": "/no\\where\udcfe",
        "secret": "/etc/shadow",
        "self": "self",
    }
    for name, leads_to in links.items():
        os.utime(link(job, name, leads_to), (5, 5), follow_symlinks=False)
    link(job, "stays", "as it was")
    (job.home / "sub").chmod(0o500)
    job.write("file")
    saved = job.save()
    kinds = {str(Path(one.path).relative_to(job.home)): one.policy for one in saved.open_files}
    assert {name for name, policy in kinds.items() if policy == "link"} == {*links, "stays"}
    assert kinds["sub"] == "directory" and not job.left
    (job.home / "sub").chmod(0o700)
    shutil.rmtree(job.home / "sub")
    for name in ("one", "secret", "self", "stays"):
        (job.home / name).unlink()
    link(job, "stays", "as it is now")
    job.bring_back()
    for name, leads_to in links.items():
        assert os.readlink(job.home / name) == leads_to
        status = (job.home / name).lstat()
        assert (status.st_uid, status.st_gid, status.st_mtime) == (*ME, 5)
    assert os.readlink(job.home / "stays") == "as it is now"
    assert stat.S_IMODE((job.home / "sub").stat().st_mode) == 0o500
    # A restore that fails leaves nothing of it.
    assert sorted(job.traces.files) == sorted(str(job.home / name) for name in links)


def test_more_links_than_come_along(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary, "_MAX_LINKS", 3)
    directory(job, "many")
    for number in range(4):
        link(job, f"many/{number}", "nowhere")
    assert sorted(policies(job.save()).values()) == ["link"] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to have links of another user")
def test_links_of_others_and_old_ones(job: Job) -> None:
    (job.home / "another's").symlink_to("nowhere")
    job.since = next_moment(link(job, "old", "nowhere"))
    assert below(job) == {}


def test_a_directory_with_more_in_it_than_comes_along_is_not_made(job: Job) -> None:
    """Its files are."""
    for name in ("pipe", "socket", "large", "nested/deep"):
        directory(job, name)
        job.write(f"{name}/{name.replace('/', ' ')}.txt")
    os.mkfifo(job.home / "pipe/pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(job.home / "socket/s"))
        os.chown(job.home / "socket/s", *ME)
        job.write("large/large", LARGE)
        os.mkfifo(job.home / "nested/deep/pipe")
        os.chown(job.home / "nested/deep/pipe", *ME)
        os.chown(job.home / "nested", *ME)
        job.settings = Files(max_read_each=100)
        saved = below(job)
    files = {f"{name}.txt": "temporary" for name in ("pipe", "socket", "large", "nested deep")}
    assert saved == files | {"socket": "directory"}
    assert job.left == (
        f"a restore on another node will miss {job.home}/large/large (1.5 MB), which the job has put on this node and"
        " has not open: keep such files where all nodes see them, or let the site carry their directory (files.carry)"
        " or save more (files.max_read)"
    )


def test_what_is_open_counts_first(job: Job) -> None:
    job.settings = Files(max_read=25)
    job.write("closed", b"x" * 5)
    job.write("closed too", b"x" * 6)
    job.has_read(job.write("open", b"x" * 20))
    job.opens(job.write("written"))
    assert below(job) == {"written": "save", "open": "read", "closed": "temporary"}
    assert f"will miss {job.home}/closed too (6 B), which" in job.left


@pytest.mark.parametrize("how", ["not alone", "off", "rule"])
def test_nothing_is_saved(job: Job, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    job.write("file")
    if how == "not alone":
        monkeypatch.setattr(company, "is_alone", lambda *_: False)
    else:
        job.settings = Files(max_read=0) if how == "off" else Files(rules=(FileRule("~/*", "keep"),))
    assert below(job) == {} and not job.left


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to have files of another user")
def test_what_others_have_is_not_saved(job: Job) -> None:
    job.write("mine")
    (job.home / "others").write_bytes(TEN)
    (job.home / "others").chmod(0o644)
    assert policies(job.save()) == {"mine": "temporary"} and not job.left


def test_a_directory_of_very_many_files_is_told(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary, "_MAX_ENTRIES", 3)
    directory(job, "many")
    for number in range(5):
        job.write(f"many/{number}")
    assert "directory" not in policies(job.save()).values()
    assert f"will miss what is in {job.home}/many, which the job has put on this node" in job.left


def found(job: Job, *own: Path, alone: bool = False) -> temporary.Temporary:
    pod = Pod(job.scan(), os.open("/", os.O_PATH), 0, mounts=[Mount("ext4", "", "/")])
    try:
        where = temporary.places(pod, map(str, own), [], alone)
        return job.files.run_sync(temporary.find, pod, job.rules(), where, [], set(), 0)
    finally:
        os.close(pod.root)


def test_what_is_in_a_working_directory_is_the_jobs_anyway(job: Job) -> None:
    for name in ("own", "own/sub", "another's"):
        directory(job, name)
        job.write(f"{name}/file")
    seen = found(job, job.home / "own", job.home / "own/sub")
    assert {file.path for file in seen.files} == {f"{job.home}/own/{name}" for name in ("file", "sub/file")}
    assert [path for path, _ in seen.directories] == [f"{job.home}/own/sub", f"{job.home}/own"]
    assert not seen.partial and not seen.left


def test_a_working_directory_that_does_not_come_along_is_told(job: Job) -> None:
    own = directory(job, "own")
    os.mkfifo(own / "pipe")
    for alone in (True, False):
        seen = found(job, own, alone=alone)
        assert seen.partial == str(own) and str(own) not in dict(seen.directories)
    assert f"will miss what is in {own}, which" in temporary.describe([], seen.partial)


def test_a_working_directory_that_all_nodes_see_is_not_looked_at(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary, "DIRECTORIES", ("/nowhere",))
    own = directory(job, "own")
    job.write("own/file")
    assert found(job, own).files
    job.shared = {os.stat(own).st_dev}
    seen = found(job, own)
    assert not seen.files and not seen.partial
    assert not found(job, Path("/"), Path("/proc")).partial


def test_a_look_at_very_many_is_quick(job: Job) -> None:
    """The ranks stand still meanwhile: thousands of directories, and of files that do not fit."""
    job.settings = Files(max_read=1)
    for number in range(4000):
        directory(job, f"{number}")
        job.write(f"{number}.txt")
    began = time.process_time()
    seen = found(job, alone=True)
    assert time.process_time() - began < 1
    assert len(seen.left) == 4000 == len(seen.directories)
