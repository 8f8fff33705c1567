"""What the manifest says of the GPU state of a pod."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from slurmckpt.store.fields import Fields

_UUID = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True)
class GpuImage:
    """processes: pids inside the pod of those whose GPU state is in their images.

    devices: UUIDs (32 hex digits) of all GPUs of the node, in PCI order; used: which of them the job had, empty when it
    was not known. profile, reason: how the ranks' communication was set up, and why.
    """

    processes: list[int]
    devices: list[str]
    used: list[int] = field(default_factory=list)
    profile: str = "none"
    reason: str = ""


def read_gpu(fields: Fields) -> GpuImage:
    """The entry `gpu` of a step. Raises Refused, as all reading of a manifest."""
    devices = fields.texts("devices")
    if not all(_UUID.fullmatch(uuid) for uuid in devices):
        fields.fail("devices", "UUIDs of 32 hex digits")
    image = GpuImage(
        processes=fields.wholes("processes", lowest=1),
        devices=devices,
        used=fields.wholes("used", lowest=0),
        profile=fields.text("profile"),
        reason=fields.text("reason"),
    )
    fields.done()
    return image
