"""GPU capture, as far as it can be seen."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from slurmckpt.config import Gpu, Paths
from slurmckpt.coordinator import gpu_answer
from slurmckpt.doctor import gpu
from tests.unit.doctor.world import World

GOOD = {"gpu.driver": "580.95.05", "gpu.count": "8", "gpu.mps": "off"}


@pytest.fixture(autouse=True)
def facts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = dict(GOOD)
    monkeypatch.setattr(gpu, "gpu", lambda: found)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return found


def test_nothing_known_against_it(world: World) -> None:
    found = gpu.capture(world.host())
    assert (found.verdict, found.text) == ("ok", "driver 580.95.05, 8 GPUs, nothing known against it")


def test_a_node_without_gpus(world: World, facts: dict[str, str]) -> None:
    facts.clear()
    assert gpu.capture(world.host()).verdict == "skipped"


def test_what_is_known_against_it(world: World, facts: dict[str, str]) -> None:
    facts["gpu.driver"] = "560.35"
    found = gpu.capture(world.host())
    assert found.verdict == "warning" and "older than 570" in found.text


def test_without_bindings(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = gpu.capture(world.host())
    assert found.verdict == "problem" and "cuda-bindings are not installed" in found.text


def test_switched_off(world: World) -> None:
    host = world.host()
    off = dataclasses.replace(host, settings=dataclasses.replace(host.settings, gpu=Gpu(capture="off")))
    assert gpu.capture(off).verdict == "skipped"


def test_what_a_selftest_has_found_counts_until_the_driver_changes(
    world: World, facts: dict[str, str], tmp_path: Path
) -> None:
    host = world.host()
    settings = dataclasses.replace(host.settings, paths=Paths(run=tmp_path / "run"))
    host = dataclasses.replace(host, settings=settings)
    gpu_answer.keep(host.settings, facts, "801")
    found = gpu.capture(host)
    assert found.verdict == "problem" and "selftest --gpu has failed" in found.text
    facts["gpu.driver"] = "610.1"
    assert gpu.capture(host).verdict == "ok"
    gpu_answer.keep(host.settings, facts, "")
    assert gpu.capture(host).verdict == "ok"
