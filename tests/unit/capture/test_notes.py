"""Notes beside the images."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from slurmckpt.capture import notes


def test_what_is_noted_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    assert notes.load(path) is None
    notes.save(path, {"a\udcff\n": [1, None]})
    assert notes.load(path) == {"a\udcff\n": [1, None]}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_note_is_written_once_and_never_elsewhere(tmp_path: Path) -> None:
    path, link = tmp_path / "note.json", tmp_path / "link.json"
    notes.save(path, "first")
    link.symlink_to(tmp_path / "target")
    for taken in (path, link):
        with pytest.raises(FileExistsError):
            notes.save(taken, "second")
    assert notes.load(path) == "first" and not (tmp_path / "target").exists()


def test_what_is_no_note(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    for text in ("{", "\xe9"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError):
            notes.load(path)
