"""A host for the tests. Who owns a test's files does not count, but where a test is about just that."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from slurmckpt.doctor import trusted
from tests.unit.doctor.world import Compile, World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(trusted, "_changeable", lambda status: "")
    monkeypatch.setattr(trusted, "unreadable", lambda path: "" if path.exists() else "is missing")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return World.below(tmp_path)


@pytest.fixture
def compiled(tmp_path: Path) -> Compile:
    """compiled(name, source, options): a file made by the C compiler of this machine."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")

    def build(name: str, source: str, options: str) -> Path:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [compiler, "-x", "c", "-", "-o", str(target), *options.split()]
        subprocess.run(command, input=source, text=True, check=True)
        return target

    return build
