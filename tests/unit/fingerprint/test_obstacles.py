"""What is known to keep GPU state from being captured."""

from __future__ import annotations

import pytest

from slurmckpt.fingerprint.obstacles import obstacles

GOOD = {"gpu.driver": "580.95.05", "gpu.count": "1", "gpu.mps": "off", "gpu.confidential": "off", "gpu.0.mig": "off"}


def test_a_good_node() -> None:
    assert obstacles(GOOD) == []
    assert obstacles({}) == []


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"gpu.driver": "560.35.03"}, "driver 560.35.03 is older than 570"),
        ({"gpu.driver": "575.57.08"}, "only a single rank"),
        ({"gpu.mps": "on"}, "stop nvidia-cuda-mps-control"),
        ({"gpu.confidential": "on"}, "confidential computing is on"),
        ({"gpu.0.mig": "on", "gpu.3.mig": "on"}, "MIG is on for GPU 0, 3"),
        ({"host.arch": "aarch64"}, "no checkpoint API on aarch64"),
        ({"gpu.error": "GPU is lost"}, "does not answer: GPU is lost"),
    ],
)
def test_each_obstacle_is_named(facts: dict[str, str], sentence: str) -> None:
    found = obstacles(GOOD | facts)
    assert len(found) == 1 and sentence in found[0]
