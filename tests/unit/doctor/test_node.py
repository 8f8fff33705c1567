"""The node feature: what Slurm knows against what this node is."""

from __future__ import annotations

import dataclasses

import pytest

from slurmckpt.config import Requeue
from slurmckpt.doctor import node
from slurmckpt.doctor.finding import Finding
from slurmckpt.doctor.host import Cluster
from slurmckpt.fingerprint.node import node_feature
from tests.unit.doctor.world import NODE, World

FACTS = {"host.kernel": "6.18.44"}
F = node_feature(FACTS)
STALE = "slurmckpt-ffffffffffff"


@pytest.fixture(autouse=True)
def facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "node_fingerprint", lambda settings, version: dict(FACTS))


def feature(world: World, *known: str) -> Finding:
    info = dataclasses.replace(NODE, features=("a", *known), active_features=("a", *known))
    return node.feature(world.host(cluster=Cluster(world.config, info)))


def test_registered(world: World) -> None:
    assert (feature(world, F).verdict, feature(world, F).text) == ("ok", f"n1 has {F}")


@pytest.mark.parametrize(("known", "has"), [((), "none"), ((STALE,), STALE)])
def test_not_registered(world: World, known: tuple[str, ...], has: str) -> None:
    found = feature(world, *known)
    assert (found.verdict, f"Slurm has {has}:" in found.text) == ("warning", True)
    assert found.remedy.startswith("slurmckpt node register;")


def test_a_stale_one_beside(world: World) -> None:
    assert f"and {STALE} of an earlier fingerprint" in feature(world, STALE, F).text


def test_an_available_feature_that_is_not_active_does_not_count(world: World) -> None:
    info = dataclasses.replace(NODE, features=("a", F))
    assert node.feature(world.host(cluster=Cluster(world.config, info))).verdict == "warning"


def test_where_there_is_nothing_to_compare(world: World) -> None:
    assert node.feature(world.login()).verdict == "skipped"
    assert node.feature(world.host(cluster=None)).verdict == "skipped"
    assert node.feature(world.host(criu=None)).verdict == "skipped"
    world.settings = dataclasses.replace(world.settings, requeue=Requeue(node_feature=False))
    assert feature(world).verdict == "skipped"
