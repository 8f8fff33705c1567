"""Builds the gate once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.gate.core import GATE, Core
from tests.unit.gate.nccl import DOUBLE


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the plugin and, in build/, the core with visible functions."""
    if not shutil.which("make") or not shutil.which("cc"):
        pytest.skip("make and cc are needed to build the gate")
    folder = tmp_path_factory.mktemp("gate")
    command = ["make", "-C", str(GATE), f"BUILD={folder}", "all", "test-library"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def core(built: Path) -> Core:
    return Core(built / "build/libgate.so")


@pytest.fixture(scope="session")
def libnccl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The double of NCCL: a simulated device."""
    if not shutil.which("make") or not shutil.which("cc"):
        pytest.skip("make and cc are needed to build the double of NCCL")
    folder = tmp_path_factory.mktemp("libnccl")
    done = subprocess.run(["make", "-C", str(DOUBLE), f"BUILD={folder}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "libnccl.so.2"
