"""Where images are staged: empty at the start, and swept of what nobody owns any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmckpt.config import Paths, Settings, Staging
from slurmckpt.coordinator import staging


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(staging=Staging(path=tmp_path / "lib" / "staging"), paths=Paths(run=tmp_path / "run"))


def test_prepare(settings: Settings) -> None:
    path = staging.prepare(settings, 7)
    assert path == settings.staging.path / "7"
    assert path.stat().st_mode & 0o7777 == settings.staging.path.stat().st_mode & 0o7777 == 0o700
    (path / "3").mkdir()
    (path / "3" / "pages.img").touch()
    assert list(staging.prepare(settings, 7).iterdir()) == []


def test_sweep(settings: Settings) -> None:
    for name in ("7", "8", "9", "lost+found", "10x"):
        (settings.staging.path / name / "images").mkdir(parents=True)
    (settings.paths.run / "8").mkdir(parents=True)
    staging.sweep(settings)
    assert sorted(path.name for path in settings.staging.path.iterdir()) == ["10x", "8", "lost+found"]


def test_nothing_to_sweep(settings: Settings) -> None:
    staging.sweep(settings)
