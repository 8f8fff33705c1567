"""What is known to keep CUDA state of this node from being captured, from its fingerprint. Sources: docs/gpu.md."""

from __future__ import annotations

from collections.abc import Mapping

# Driver 570 brought the checkpoint API (CUDA 12.8); before 580 several ranks block each other.
_FIRST, _SEVERAL = 570, 580


def obstacles(facts: Mapping[str, str]) -> list[str]:
    """One sentence each, with the way out; empty when nothing is known. facts: the node's fingerprint."""
    found = []
    driver = facts.get("gpu.driver", "")
    major = driver.partition(".")[0]
    if error := facts.get("gpu.error"):
        found.append(f"the NVIDIA driver does not answer: {error}")
    if major.isdecimal() and int(major) < _FIRST:
        found.append(f"driver {driver} is older than {_FIRST}, which brought the checkpoint API: update it")
    elif major.isdecimal() and int(major) < _SEVERAL:
        found.append(f"with driver {driver} only a single rank can be captured; {_SEVERAL} is needed for more")
    if facts.get("host.arch", "x86_64") != "x86_64":
        found.append(f"the driver has no checkpoint API on {facts['host.arch']} (801)")
    if facts.get("gpu.mps") == "on":
        found.append("MPS runs, and its clients cannot be captured: stop nvidia-cuda-mps-control")
    if facts.get("gpu.confidential") == "on":
        found.append("confidential computing is on: GPU memory cannot be taken out")
    divided = [key.split(".")[1] for key, value in sorted(facts.items()) if key.endswith(".mig") and value == "on"]
    if divided:
        found.append(f"MIG is on for GPU {', '.join(divided)}, and state of its instances cannot be captured")
    return found
