"""Node features of ours among those of others."""

from __future__ import annotations

import pytest

from slurmckpt.slurm.features import plan_registration, with_own_feature
from slurmckpt.slurm.port import NodeInfo

F = "slurmckpt-0123456789ab"
STALE = "slurmckpt-ffffffffffff"


def node(*features: str, active: tuple[str, ...] | None = None, state: str = "IDLE") -> NodeInfo:
    return NodeInfo(
        name="n1",
        hostname="n1",
        state=frozenset(state.split("+")),
        features=features,
        active_features=features if active is None else active,
        partitions=frozenset({"debug"}),
    )


@pytest.mark.parametrize(
    ("current", "wanted"),
    [
        ((), (F,)),
        (("a", "b"), ("a", "b", F)),
        (("a", STALE, "b"), ("a", "b", F)),
        ((F, "a"), (F, "a")),
        ((STALE, F, "a"), (F, "a")),
        # not of our form, so not ours
        (("slurmckpt-site", "slurmckpt-0123456789abc"), ("slurmckpt-site", "slurmckpt-0123456789abc", F)),
    ],
)
def test_features_of_others_stay(current: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    assert with_own_feature(current, F) == wanted


def test_only_our_form_is_registered() -> None:
    with pytest.raises(ValueError, match="node feature"):
        with_own_feature(("a",), "a,b")


def test_an_inactive_feature_stays_inactive() -> None:
    plan = plan_registration(node("a", "knl", active=("a",)), F)
    assert (plan.available, plan.active) == (("a", "knl", F), ("a", F))
    assert plan.needed


def test_a_registered_node_needs_nothing() -> None:
    assert not plan_registration(node("a", F), F).needed
    assert plan_registration(node("a", F, active=("a",)), F).needed


def test_a_stale_feature_is_named() -> None:
    assert plan_registration(node(STALE, "a"), F).dropped == [STALE]


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        ("IDLE", True),
        ("ALLOCATED", True),
        ("MIXED+COMPLETING", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("IDLE+PLANNED", True),
        ("DOWN", False),
        ("DOWN+NOT_RESPONDING", False),
        ("IDLE+DRAIN", False),
        ("IDLE+NOT_RESPONDING", False),
        ("MIXED+FAIL", False),
        ("IDLE+INVALID_REG", False),
        ("IDLE+REBOOT_ISSUED", False),
        ("FUTURE", False),
        ("UNKNOWN", False),
    ],
)
def test_usable_nodes(state: str, usable: bool) -> None:
    assert node(state=state).usable is usable
