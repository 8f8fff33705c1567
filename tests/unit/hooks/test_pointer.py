"""The epilog's shell script finds a job also where paths.run is another directory."""

from __future__ import annotations

from pathlib import Path

from slurmckpt.config import Paths, Settings, Staging
from slurmckpt.coordinator import pointer
from slurmckpt.hooks import epilog


def test_a_run_directory_elsewhere_has_a_link(tmp_path: Path, place: Path) -> None:
    job = tmp_path / "run" / "7"
    job.mkdir(parents=True)
    pointer.leave(job)
    assert (place / "7").readlink() == job
    pointer.leave(job)
    settings = Settings(paths=Paths(run=tmp_path / "run"), staging=Staging(path=tmp_path / "staging"))
    epilog.clean(settings, 7)
    assert list(place.iterdir()) == []
    # A second epilog, and one whose coordinator has removed the directory already.
    epilog.clean(settings, 7)
    job.mkdir()
    pointer.leave(job)
    job.rmdir()
    epilog.clean(settings, 7)
    assert list(place.iterdir()) == []


def test_the_usual_place_needs_none(place: Path) -> None:
    (place / "7").mkdir(parents=True)
    pointer.leave(place / "7")
    assert (place / "7").is_dir() and not (place / "7").is_symlink()
    pointer.remove(place / "7")
    assert (place / "7").is_dir()
