"""How the communication of GPU ranks must be set up so that their state can be captured: environment at launch.

NCCL reads its variables once, at its first use, so they must be right when a task starts. Sources: docs/gpu.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Name = Literal["none", "sockets", "job"]

# Ranks talk over sockets alone: nothing of a GPU is mapped by two processes. Reported to work on driver 580.
_SOCKETS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_RAS_ENABLE": "0",
    "NCCL_GRAPH_REGISTER": "0",
    # Otherwise a restore may hang (NVIDIA/nccl issue 2350).
    "NCCL_CUMEM_HOST_ENABLE": "0",
}
# Inside of a checkpoint job the driver carries legacy CUDA IPC, and only that.
_JOB = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", "NCCL_CUMEM_HOST_ENABLE": "0"}
ENVIRONMENT: Mapping[Name, Mapping[str, str]] = {"none": {}, "sockets": _SOCKETS, "job": _JOB}

# What `cuda-checkpoint --launch-job` leaves in the environment of what it starts.
_JOB_FILE = b"CUDA_CHECKPOINT_JOB_FILE"
# What such a job is to the driver, and to who captures it, is documented nowhere: it is for those who want to try it.
_JOB_UNTRIED = "which nobody has tried with slurmckpt on a device"
_FIRST_DRIVER = 570
_JOB_DRIVER = 610
_MAX_GPUS = 1024
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)


@dataclass(frozen=True)
class Profile:
    """name: what was chosen. reason: why. conflict: why several ranks cannot be captured all the same, or empty."""

    name: Name = "none"
    reason: str = ""
    conflict: str = ""

    @property
    def environment(self) -> Mapping[str, str]:
        """What a task gets."""
        return {} if self.conflict else ENVIRONMENT[self.name]

    def __str__(self) -> str:
        settings = " ".join(f"{name}={value}" for name, value in self.environment.items())
        return f"GPU profile {self.name}: {self.reason}" + (f"; tasks get {settings}" if settings else "")


@dataclass(frozen=True)
class Node:
    """What of the node decides. driver: its version, empty without a GPU."""

    driver: str
    count: int

    @classmethod
    def of(cls, fingerprint: Mapping[str, str]) -> Node:
        """From the node's fingerprint."""
        count = fingerprint.get("gpu.count", "0")
        return cls(fingerprint.get("gpu.driver", ""), int(count) if count.isdecimal() else 0)


def choose(wanted: str, node: Node, environment: Sequence[bytes], tasks: int) -> Profile:
    """The profile of a step's tasks. wanted: gpu.profile. environment: of its first task. tasks: on this node."""
    if not node.count or not _may_use_gpus(environment):
        return Profile()
    gpus = len(indices(environment)) or node.count
    ranks = max(tasks, gpus)
    major = int(node.driver.partition(".")[0]) if node.driver.partition(".")[0].isdecimal() else 0
    in_job = any(entry.startswith(_JOB_FILE + b"=") for entry in environment)
    here = f"driver {node.driver}, {gpus} GPU{'s' if gpus > 1 else ''}"
    if major < _FIRST_DRIVER:
        return Profile("none", f"{here}: CUDA state can be captured from driver {_FIRST_DRIVER} on")
    if wanted == "auto":
        if ranks == 1:
            return Profile("none", f"{here}: a single rank needs none")
        more = f"; the step runs in a checkpoint job, {_JOB_UNTRIED}" if in_job else ""
        return _checked("sockets", f"{here}: only sockets between ranks can be captured{more}", environment)
    name: Name = "sockets" if wanted == "sockets" else "job" if wanted == "job" else "none"
    if name == "job" and (major < _JOB_DRIVER or not in_job):
        lacking = f"driver {_JOB_DRIVER}" if major < _JOB_DRIVER else "a step under `cuda-checkpoint --launch-job`"
        return Profile(name, f"{here}: as configured", f"the GPU profile job needs {lacking}")
    untried = f", {_JOB_UNTRIED}" if name == "job" else ""
    return _checked(name, f"{here}: as configured{untried}", environment)


def recorded(name: str, reason: str) -> Profile:
    """The profile that a manifest names."""
    known: dict[str, Name] = {"sockets": "sockets", "job": "job"}
    return Profile(known.get(name, "none"), reason)


def apply(profile: Profile, environment: Sequence[bytes]) -> list[bytes]:
    """The environment with what the profile needs."""
    present = {entry.partition(b"=")[0] for entry in environment}
    added = [f"{name}={value}".encode() for name, value in profile.environment.items() if name.encode() not in present]
    return [*environment, *added]


def indices(environment: Iterable[bytes]) -> tuple[int, ...]:
    """Which GPUs of the node Slurm gave to this step or job, as it numbers them; empty where it does not say.

    The variables are the user's to change: whatever is not a plain list counts as not said.
    """
    values = dict(entry.partition(b"=")[::2] for entry in environment)
    for name in (b"SLURM_STEP_GPUS", b"SLURM_JOB_GPUS"):
        found: list[int] = []
        for word in values.get(name, b"").decode("ascii", "replace").split(","):
            match = _RANGE.fullmatch(word)
            if match is None:
                found = []
                break
            found += range(int(match[1]), int(match[2] or match[1]) + 1)
        if found and len(found) <= _MAX_GPUS:
            return tuple(found)
    return ()


def surely_has_gpus(environment: Sequence[bytes]) -> bool:
    """Whether the environment names GPUs. Where Slurm does not manage them, a job may use some all the same."""
    named = any(entry.startswith(b"CUDA_VISIBLE_DEVICES=") for entry in environment)
    return bool(indices(environment)) or (named and _may_use_gpus(environment))


def _may_use_gpus(environment: Iterable[bytes]) -> bool:
    """Slurm hides GPUs from a step that asked for none by an empty CUDA_VISIBLE_DEVICES."""
    values = dict(entry.partition(b"=")[::2] for entry in environment)
    return values.get(b"CUDA_VISIBLE_DEVICES") not in (b"", b"NoDevFiles", b"-1")


def _checked(name: Name, reason: str, environment: Iterable[bytes]) -> Profile:
    given = {entry.partition(b"=")[0].decode("ascii", "replace"): entry.partition(b"=")[2] for entry in environment}
    for variable, value in ENVIRONMENT[name].items():
        if variable in given and given[variable] != value.encode():
            shown = given[variable].decode("utf-8", "replace")[:40]
            return Profile(
                name,
                reason,
                f"{variable}={shown} in the job's environment contradicts the GPU profile {name}, which needs {value}:"
                " unset it, or set gpu.profile in slurmckpt.toml",
            )
    return Profile(name, reason)
