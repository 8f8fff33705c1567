"""Links for a batch script that lay elsewhere: made by root, so only where nobody else could have a hand in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt.coordinator import scriptpaths
from slurmckpt.coordinator.scriptfile import ScriptFile
from tests.unit.coordinator.parts import GID, UID

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the directories have to be root's")


@pytest.fixture
def spools(tmp_path: Path) -> Iterator[Path]:
    before = os.umask(0o022)
    spools = tmp_path / "spool"
    spools.mkdir()
    yield spools
    os.umask(before)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    return run


def script(spools: Path, node: str, job: str = "job00007") -> Path:
    """As slurmd puts it there."""
    directory = spools / f"slurmd.{node}" / job
    directory.mkdir(parents=True)
    path = directory / "slurm_script"
    path.write_text("#!/bin/sh\n")
    for each in (directory, path):
        each.chmod(0o700)
        os.chown(each, UID, GID)
    return path


def read(path: Path) -> ScriptFile:
    return scriptpaths.read(str(path), 7)


def test_the_path_of_slurmd_is_one(spools: Path) -> None:
    path = script(spools, "n1")
    assert read(path).paths == (str(path),)


@pytest.mark.parametrize("how", ["other job", "other name", "user's", "writable", "user's above", "link above", "up"])
def test_what_the_user_could_have_made_is_none(spools: Path, how: str) -> None:
    path = script(spools, "n1", "job00008" if how == "other job" else "job00007")
    if how == "other name":
        path = path.rename(path.with_name("script"))
    elif how == "user's":
        os.chown(path.parent.parent, UID, GID)
    elif how == "writable":
        path.parent.parent.chmod(0o777)
    elif how == "user's above":
        os.chown(spools, UID, GID)
    elif how == "link above":
        (spools / "link").symlink_to(spools / "slurmd.n1")
        path = spools / "link/job00007/slurm_script"
    elif how == "up":
        path = Path(f"{spools}/../spool/slurmd.n1/job00007/slurm_script")
    found = read(path)
    assert found.path == str(path) and found.digest and found.paths == ()


def test_the_old_path_leads_to_the_script_until_the_job_has_left(spools: Path, run: Path) -> None:
    old, older = (str(spools / f"{name}/job00007/slurm_script") for name in ("slurmd.n1", "other/slurmd.n0"))
    here = read(script(spools, "n2"))
    assert scriptpaths.lead([older, old, here.path], here, run) == []
    # Again, as when a restore is tried once more.
    assert scriptpaths.lead([older, old, here.path], here, run) == []
    for path in (old, older):
        assert Path(path).read_text() == "#!/bin/sh\n" and os.path.samefile(path, here.path)
    status = os.lstat(spools / "slurmd.n1")
    assert (status.st_uid, status.st_mode & 0o777) == (0, 0o755)
    scriptpaths.remove(run)
    assert [path.name for path in spools.iterdir()] == ["slurmd.n2"] and Path(here.path).exists()


def test_two_jobs_have_their_links_in_one_directory(spools: Path, run: Path, tmp_path: Path) -> None:
    first = script(spools, "n2")
    other = tmp_path / "other run"
    other.mkdir()
    second = first.parent.with_name("job00009") / "slurm_script"
    for path, directory in ((first, run), (second, other)):
        old = str(path).replace("slurmd.n2", "slurmd.n1")
        assert scriptpaths.lead([old], ScriptFile(str(path), "digest"), directory) == []
    scriptpaths.remove(run)
    assert [path.name for path in (spools / "slurmd.n1").iterdir()] == ["job00009"]
    scriptpaths.remove(other)
    assert not (spools / "slurmd.n1").exists()


@pytest.mark.parametrize("how", ["user's", "writable", "link"])
def test_no_link_is_made_where_others_may_have_a_hand_in_it(spools: Path, run: Path, tmp_path: Path, how: str) -> None:
    here = read(script(spools, "n2"))
    place, elsewhere = spools / "slurmd.n1", tmp_path / "elsewhere"
    elsewhere.mkdir()
    if how == "link":
        place.symlink_to(elsewhere)
    else:
        place.mkdir()
        os.chown(place, UID if how == "user's" else 0, 0)
        place.chmod(0o777 if how == "writable" else 0o755)
    old = f"{place}/job00007/slurm_script"
    assert scriptpaths.lead([old], here, run) == [
        f"the batch script is not found at {old} any more, where it began: {place} is not root's alone"
    ]
    assert not list(elsewhere.iterdir()) and not list(place.iterdir())


def test_nothing_is_put_into_the_directory_of_another_slurmd_of_this_node(spools: Path, run: Path) -> None:
    """It removes scripts that it finds there when it starts: through a link that would be this node's."""
    here = read(script(spools, "n2"))
    (spools / "slurmd.n1").mkdir()
    (spools / "slurmd.n1/cred_state").touch()
    old = f"{spools}/slurmd.n1/job00007/slurm_script"
    (complaint,) = scriptpaths.lead([old], here, run)
    assert complaint.endswith(f"{spools}/slurmd.n1 belongs to a slurmd of this node")
    scriptpaths.remove(run)
    assert (spools / "slurmd.n1/cred_state").exists()


def test_what_is_noted_and_is_no_link_stays(spools: Path, run: Path) -> None:
    """slurmd itself may have put the job's directory there meanwhile."""
    here = read(script(spools, "n2"))
    old = spools / "slurmd.n1/job00007/slurm_script"
    scriptpaths.lead([str(old)], here, run)
    old.parent.unlink()
    old.parent.mkdir()
    old.touch()
    scriptpaths.remove(run)
    assert old.exists()


def test_a_note_that_is_cut_off_or_missing_is_no_fault(run: Path) -> None:
    scriptpaths.remove(run)
    (run / "script.links").write_text('["/nowhere/job1", ["/nowh')
    scriptpaths.remove(run)
