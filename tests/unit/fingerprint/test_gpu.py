"""The GPU facts, through the real NVML bindings over a double of NVIDIA's library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "nvml_double.c"
PACKAGE = Path(__file__).parents[3] / "src"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    directory = tmp_path_factory.mktemp("nvml")
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]
    subprocess.run([*command, directory / "libnvidia-ml.so.1", SOURCE], check=True)
    return directory


def gpu(library: Path, role: str) -> object:
    """gpu() in a process of its own: the bindings keep the library for good."""
    code = "import json; from slurmckpt.fingerprint.gpu import gpu; print(json.dumps(gpu()))"
    environment = os.environ | {"LD_LIBRARY_PATH": str(library), "NVML_DOUBLE": role, "PYTHONPATH": str(PACKAGE)}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(answer.stdout)


def test_two_gpus(library: Path) -> None:
    one = {"name": "NVIDIA H200", "memory": "150754820096", "capability": "9.0"}
    assert gpu(library, "two") == {
        "gpu.driver": "570.86.15",
        "gpu.count": "2",
        **{f"gpu.0.{key}": value for key, value in one.items()},
        **{f"gpu.1.{key}": value for key, value in one.items()},
        "gpu.0.mig": "off",
        "gpu.1.mig": "on",
    }


def test_a_node_without_gpus(library: Path, tmp_path: Path) -> None:
    assert gpu(library, "none") == {}
    assert gpu(library, "unloaded") == {}
    assert gpu(tmp_path, "no library") == {}


def test_a_driver_that_does_not_answer(library: Path) -> None:
    assert gpu(library, "broken") == {"gpu.error": "GPU is lost"}
