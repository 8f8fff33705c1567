"""Node features that slurmckpt owns: their form, and how they are kept among the features of others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from slurmckpt.slurm.port import NodeInfo, SlurmPort

OWN_FEATURE = re.compile(r"slurmckpt-[0-9a-f]{12}", re.ASCII)


def check_feature(feature: str) -> str:
    """`feature` when it is one of ours; otherwise ValueError. It ends up in expressions that Slurm parses."""
    if not OWN_FEATURE.fullmatch(feature):
        raise ValueError(f"node feature {feature[:80]!r} is not accepted: slurmckpt- and 12 hex digits")
    return feature


def with_own_feature(current: Iterable[str], feature: str) -> tuple[str, ...]:
    """`current` in its order without other features of ours, and with `feature`.

    A feature of ours that differs is stale: it describes the node before its driver or kernel changed.
    """
    check_feature(feature)
    kept = [name for name in current if name == feature or not OWN_FEATURE.fullmatch(name)]
    return tuple(kept) if feature in kept else (*kept, feature)


@dataclass(frozen=True)
class Registration:
    """What registering a node's feature changes: the lists that Slurm has now and those that it is to have."""

    node: NodeInfo
    available: tuple[str, ...]
    active: tuple[str, ...]

    @property
    def needed(self) -> bool:
        """Whether Slurm has to be told anything."""
        return self.available != self.node.features or self.active != self.node.active_features

    @property
    def dropped(self) -> list[str]:
        """Stale features of ours that the node still had."""
        return [name for name in self.node.features if name not in self.available]


def plan_registration(node: NodeInfo, feature: str) -> Registration:
    """What the node's features are to be. Features of others stay as they are, active or not."""
    return Registration(
        node=node,
        available=with_own_feature(node.features, feature),
        active=with_own_feature(node.active_features, feature),
    )


async def register(port: SlurmPort, name: str, feature: str) -> Registration:
    """Make sure that Slurm knows `feature` for the node; returns what was changed.

    To be repeated: slurmctld goes back to the features of slurm.conf when it restarts or is reconfigured. A job that
    waits for the feature is then held (BadConstraints), and released within half a minute after it is back (measured
    with 26.05; job_time_limit() in src/slurmctld/job_mgr.c). Raises SlurmError.
    """
    plan = plan_registration(await port.node(name), feature)
    if plan.needed:
        await port.set_node_features(name, plan.available, plan.active)
    return plan
