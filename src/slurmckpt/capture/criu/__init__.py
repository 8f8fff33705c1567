"""CRIU, driven by its RPC: one `criu swrk` for each dump or restore, inside the namespaces of the pod.

CRIU enters the pod, so it sees a plain process tree and no namespaces, and it is told where to write by path: it
resolves descriptors of its peer through the peer's pid, which means nothing in another PID namespace. Protocol:
criu.org/RPC.
"""

from slurmckpt.capture.criu.installation import CriuDied, CriuError, CriuMoment, Installation, find, warm_up
from slurmckpt.capture.criu.requests import DumpHooks, Limits, RestoreHooks, dump, restore
from slurmckpt.capture.criu.swrk import Target

__all__ = [
    "CriuDied",
    "CriuError",
    "CriuMoment",
    "DumpHooks",
    "Installation",
    "Limits",
    "RestoreHooks",
    "Target",
    "dump",
    "find",
    "restore",
    "warm_up",
]
