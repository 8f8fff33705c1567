"""The file of the batch script: read as a user, who may put anything in its place."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from slurmckpt.coordinator import scriptfile
from slurmckpt.coordinator.scriptfile import NONE, ScriptFile


def test_path_and_content(tmp_path: Path) -> None:
    path = tmp_path / "slurm_script"
    path.write_bytes(b"#!/bin/sh\n" * 200_000)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert scriptfile.read(str(path)) == ScriptFile(str(path), digest)


def test_a_large_file_is_not_read_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scriptfile, "_MAX_BYTES", 100)
    monkeypatch.setattr(scriptfile, "_CHUNK", 10)
    path = tmp_path / "slurm_script"
    path.write_bytes(b"x" * 1000)
    assert scriptfile.read(str(path)).digest == hashlib.sha256(b"x" * 100).hexdigest()


@pytest.mark.parametrize("kind", ["nothing", "directory", "fifo", "link", "device", "NUL"])
def test_what_is_no_script(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "slurm_script"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "real").write_text("#!/bin/sh\n")
        path.symlink_to(tmp_path / "real")
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "NUL":
        path = Path("/a\0b")
    assert scriptfile.read(str(path)) == NONE
