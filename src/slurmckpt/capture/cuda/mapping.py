"""Which GPU stands for which at a restore."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurmckpt.errors import Refused

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Devices:
    """The GPUs of a node. uuids: of all, 32 hex digits each, in PCI order. used: those of the job, in its own order.

    used: as indices into uuids; empty where it is not known, or is all of them.
    """

    uuids: Sequence[str]
    used: Sequence[int] = ()


def pairs(before: Devices, now: Devices) -> Pairs:
    """(old UUID, new UUID) of every GPU, empty when nothing has changed. Raises Refused when there is no such mapping.

    The driver wants every GPU of the node in the map, not only those of the job; the others are paired in their order.
    """
    if len(before.uuids) != len(now.uuids):
        raise Refused(
            f"the checkpoint was taken on a node with {len(before.uuids)} GPUs, and here are {len(now.uuids)}"
        )
    if len(before.used) != len(now.used):
        raise Refused(f"the job had {len(before.used)} GPUs at the checkpoint, and has {len(now.used)} now")
    for devices in (before, now):
        if len(set(devices.used)) < len(devices.used) or any(not 0 <= i < len(devices.uuids) for i in devices.used):
            raise Refused(
                f"the GPUs {list(devices.used)} of the job are not among the {len(devices.uuids)} of the node"
            )
    mapped = [(before.uuids[old], now.uuids[new]) for old, new in zip(before.used, now.used, strict=True)]
    taken, given = {old for old, _ in mapped}, {new for _, new in mapped}
    left = [uuid for uuid in before.uuids if uuid not in taken]
    free = [uuid for uuid in now.uuids if uuid not in given]
    # A GPU that is on both sides is itself, wherever it can be.
    same = [uuid for uuid in left if uuid in free]
    mapped += [(uuid, uuid) for uuid in same]
    mapped += zip([uuid for uuid in left if uuid not in same], [uuid for uuid in free if uuid not in same], strict=True)
    return [] if all(old == new for old, new in mapped) else mapped
