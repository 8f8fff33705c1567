"""`slurmckpt selftest --gpu` on a simulated device."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from slurmckpt.capture.cuda import selftest
from slurmckpt.capture.cuda.client import CudaClient
from tests.doubles import simulated
from tests.unit.capture.cuda.conftest import ROOT


@pytest.fixture(scope="module")
def probe(libraries: Path) -> Path:
    subprocess.run(["make", "--silent", "-C", str(ROOT / "gpu"), f"BUILD={libraries}"], check=True)
    return libraries / "gpu-probe"


def answer(hardware: simulated.Hardware, probe: Path, size: int = 1 << 20) -> selftest.Answer:
    async def work() -> selftest.Answer:
        client = CudaClient(hardware.environment | {"PYTHONPATH": str(ROOT / "src")})
        try:
            return await selftest.run(client, probe, size, hardware.environment)
        finally:
            await client.close()

    return asyncio.run(asyncio.wait_for(work(), 200))


def test_a_node_that_can(hardware: simulated.Hardware, probe: Path) -> None:
    found = answer(hardware, probe)
    assert found.failure == "" and found.gpu == "NVIDIA H200"
    assert list(found.seconds) == ["lock", "checkpoint", "restore", "unlock"]


@pytest.mark.parametrize(
    ("settings", "reason", "conclusive"),
    [
        ({"lock.error": 801}, "cannot be checkpointed (801)", True),
        ({"checkpoint.error": 304}, "CAP_SYS_PTRACE", True),
        ({"restore.error": 999}, "the driver answers 999", True),
        ({"cuda": 12040}, "it knows CUDA 12.4", False),
        ({"devices": 0}, "the probe could not use the GPU: error cuInit 100", False),
        ({"memory": 1000}, "the probe could not use the GPU: error cuMemAlloc 2", False),
        ({"checkpoint.after": "die-target"}, "process", True),
        ({"restore.after": "die-target"}, "the probe failed on the GPU: it ended", True),
    ],
)
def test_a_node_that_cannot(
    hardware: simulated.Hardware, probe: Path, settings: dict[str, object], reason: str, conclusive: bool
) -> None:
    hardware.set(**{key.replace(".", "__"): value for key, value in settings.items()})
    found = answer(hardware, probe)
    assert reason in found.failure and found.conclusive is conclusive


def test_a_probe_that_is_missing(hardware: simulated.Hardware, tmp_path: Path) -> None:
    assert "cannot be executed: No such file" in answer(hardware, tmp_path / "none").failure
