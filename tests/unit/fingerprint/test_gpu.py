"""The GPU facts, through the real NVML bindings over a double of NVIDIA's library (a simulated device)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doubles import simulated

PACKAGE = Path(__file__).parents[3] / "src"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    return simulated.build(tmp_path_factory.mktemp("libraries"))


@pytest.fixture
def hardware(libraries: Path, tmp_path: Path) -> simulated.Hardware:
    return simulated.Hardware(tmp_path / "hardware", libraries)


def gpu(environment: dict[str, str], proc: Path = Path("/proc")) -> dict[str, str]:
    """gpu() in a process of its own: the bindings keep the library for good."""
    code = "import json, pathlib, sys; from slurmckpt.fingerprint.gpu import gpu;"
    code += "print(json.dumps(gpu(pathlib.Path(sys.argv[1]))))"
    whole = os.environ | environment | {"PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, "-c", code, str(proc)]
    answer = subprocess.run(command, env=whole, stdout=subprocess.PIPE, check=True)
    found = json.loads(answer.stdout)
    assert isinstance(found, dict)
    return found


def test_two_gpus(hardware: simulated.Hardware) -> None:
    hardware.set(driver="570.86.15", memory=150754820096, mig=1, seed=7)
    one = {"name": "NVIDIA H200", "memory": "150754820096", "capability": "9.0", "persistence": "on"}
    assert gpu(hardware.environment) == {
        "gpu.driver": "570.86.15",
        "gpu.count": "2",
        "gpu.confidential": "off",
        "gpu.mps": "off",
        **{f"gpu.0.{key}": value for key, value in one.items()},
        **{f"gpu.1.{key}": value for key, value in one.items()},
        "gpu.0.uuid": "GPU-07000000-0000-0000-0000-000000000001",
        "gpu.1.uuid": "GPU-07000000-0000-0000-0000-000000000002",
        "gpu.0.mig": "off",
        "gpu.1.mig": "on",
    }


def test_other_modes_and_models(hardware: simulated.Hardware, tmp_path: Path) -> None:
    hardware.set(name="NVIDIA L4", capability="8.9", devices=1, confidential=1, persistence=0)
    daemon = tmp_path / "proc" / "17"
    daemon.mkdir(parents=True)
    (daemon / "comm").write_text("nvidia-cuda-mps\n")
    facts = gpu(hardware.environment, tmp_path / "proc")
    assert facts["gpu.0.name"] == "NVIDIA L4"
    assert facts["gpu.0.capability"] == "8.9"
    assert (facts["gpu.confidential"], facts["gpu.mps"], facts["gpu.0.persistence"]) == ("on", "on", "off")
    assert "gpu.1.name" not in facts


def test_a_node_without_gpus(hardware: simulated.Hardware, tmp_path: Path) -> None:
    hardware.set(devices=0)
    assert gpu(hardware.environment) == {}
    hardware.set(devices=2, nvml="unloaded")
    assert gpu(hardware.environment) == {}
    assert gpu({"LD_LIBRARY_PATH": str(tmp_path)}) == {}


def test_a_driver_that_does_not_answer(hardware: simulated.Hardware) -> None:
    hardware.set(nvml="broken")
    assert gpu(hardware.environment) == {"gpu.error": "GPU is lost"}
