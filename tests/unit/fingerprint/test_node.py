"""The node feature: the same for nodes that are the same where it matters, and for nothing else."""

from __future__ import annotations

import pytest

from slurmckpt.config import Fingerprint, Settings
from slurmckpt.fingerprint import node
from slurmckpt.fingerprint.node import node_feature, node_fingerprint
from slurmckpt.slurm.features import OWN_FEATURE

FACTS = {
    "host.kernel": "6.18.44",
    "host.cpu.flags": "avx avx2",
    "host.os": "Debian 14",
    "gpu.driver": "570.86.15",
    "site.image": "2026-11",
}


def test_the_form_that_slurm_is_told() -> None:
    assert OWN_FEATURE.fullmatch(node_feature(FACTS))
    assert OWN_FEATURE.fullmatch(node_feature({}))


def test_it_is_fixed() -> None:
    """Nodes with different releases of slurmckpt must agree: change the format number when this has to change."""
    assert node_feature({"host.kernel": "6.18.44"}) == "slurmckpt-bf770aa031b0"


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"host.kernel": "6.18.45"}, False),
        ({"host.cpu.flags": "avx avx2 avx512f"}, False),
        ({"gpu.driver": "575.51.03"}, False),
        ({"site.image": "2026-12"}, False),
        ({"gpu.0.name": "NVIDIA H200"}, False),
        ({"host.os": "Debian 15"}, True),
        ({"engine.torch": "2.11.0", "engine.build-id:/lib/libc.so.6": "aa", "model.id": "m"}, True),
    ],
)
def test_what_it_depends_on(change: dict[str, str], same: bool) -> None:
    assert (node_feature(FACTS | change) == node_feature(FACTS)) is same


def test_the_order_of_the_keys_does_not_matter() -> None:
    assert node_feature(dict(reversed(FACTS.items()))) == node_feature(FACTS)


def test_the_sites_rules_decide() -> None:
    changed = FACTS | {"host.kernel": "6.18.45"}
    assert node_feature(changed, {"host.kernel": "informative"}) == node_feature(FACTS, {"host.kernel": "informative"})
    assert node_feature(FACTS, {"host.os": "equal"}) != node_feature(FACTS)


def test_the_parts_of_a_nodes_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "gpu", lambda: {"gpu.driver": "570.86.15"})
    facts = node_fingerprint(Settings(fingerprint=Fingerprint(site={"image": "2026-11"})), "4.2.1")
    assert facts["site.image"] == "2026-11"
    assert facts["gpu.driver"] == "570.86.15"
    assert facts["host.criu"] == "4.2.1"
