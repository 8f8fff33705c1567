"""Whether GPU ranks can be captured on this node, as far as that can be seen without using a GPU."""

from __future__ import annotations

import importlib.util

from slurmckpt.coordinator import gpu_answer
from slurmckpt.doctor.finding import Finding, ok, problem, skipped, warning
from slurmckpt.doctor.host import Host
from slurmckpt.fingerprint.gpu import gpu
from slurmckpt.fingerprint.obstacles import obstacles

_TRY = "slurmckpt selftest --gpu, on a node whose first GPU is free, tells for certain"


def capture(host: Host) -> Finding:
    """The driver, its modes, the bindings, and what a selftest has found since the node was booted."""
    if not host.is_node:
        return skipped("this is no compute node")
    facts = gpu()
    if not facts:
        return skipped("this node has no NVIDIA GPU, or no driver for it")
    if host.settings.gpu.capture == "off":
        return skipped('gpu.capture is "off"')
    if failure := gpu_answer.failure(host.settings, facts):
        return problem(f"slurmckpt selftest --gpu has failed since this node was booted: {failure}", _TRY)
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        return problem(
            "cuda-bindings are not installed: GPU jobs get no checkpoints",
            "/opt/slurmckpt/bin/pip install 'cuda-bindings>=13.1'",
        )
    known = obstacles(facts)
    if known:
        return warning("; ".join(known), _TRY)
    return ok(f"driver {facts['gpu.driver']}, {facts['gpu.count']} GPUs, nothing known against it")
