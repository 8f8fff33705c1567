"""Whether Slurm knows this node's fingerprint."""

from __future__ import annotations

from slurmckpt.doctor.finding import Finding, ok, skipped, warning
from slurmckpt.doctor.host import Host
from slurmckpt.fingerprint.node import node_feature, node_fingerprint
from slurmckpt.slurm.features import OWN_FEATURE

_REMEDY = "slurmckpt node register; systemctl enable --now slurmckpt-register.timer keeps it so"


def feature(host: Host) -> Finding:
    """The node feature in Slurm is that of this node's fingerprint: requeued jobs are sent by it."""
    if not host.is_node:
        return skipped("this is no compute node")
    if not host.settings.requeue.node_feature:
        return skipped("requeue.node_feature is false")
    if host.cluster is None or host.cluster.node is None:
        return skipped("Slurm does not say what it knows of this node")
    if host.criu is None:
        return skipped("without CRIU this node has none")
    node, here = (
        host.cluster.node,
        node_feature(node_fingerprint(host.settings, host.criu.version), host.settings.fingerprint.rules),
    )
    known = [name for name in node.active_features if OWN_FEATURE.fullmatch(name)]
    if known == [here]:
        return ok(f"{node.name} has {here}")
    if here in known:
        stale = ", ".join(name for name in known if name != here)
        return warning(f"{node.name} has {here}, and {stale} of an earlier fingerprint", _REMEDY)
    has = ", ".join(known) or "none"
    return warning(
        f"{node.name} is {here}, and Slurm has {has}: requeued jobs are not sent where their checkpoint fits", _REMEDY
    )
