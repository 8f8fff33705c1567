"""The node's NVIDIA GPUs and their driver, through NVML.

All GPUs of the node count, also those that other jobs use: CUDA's restore needs the same set of devices that the
kernel driver shows.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurmckpt.fingerprint.compare import Fingerprint

log = logging.getLogger(__name__)

# What MPS runs its daemons as, nvidia-cuda-mps-control and nvidia-cuda-mps-server, cut to the 15 letters of
# /proc/PID/comm. NVML does not tell while no client is connected.
_MPS = b"nvidia-cuda-mps"


def gpu(proc: Path = Path("/proc")) -> Fingerprint:
    """This node's keys `gpu.*`; empty where there is no NVIDIA driver.

    When the driver is there but does not answer, `gpu.error` says so and keeps any checkpoint with GPUs from fitting.
    """
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return {}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        return {}
    except nvml.NVMLError as error:
        if getattr(error, "value", None) == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
            return {}
        return _failed(error)
    try:
        return _facts(nvml, proc)
    except nvml.NVMLError as error:
        return _failed(error)
    finally:
        nvml.nvmlShutdown()


def _facts(nvml: Any, proc: Path) -> Fingerprint:
    count = nvml.nvmlDeviceGetCount()
    if count == 0:
        return {}
    facts = {
        "gpu.driver": _text(nvml.nvmlSystemGetDriverVersion()),
        "gpu.count": str(count),
        "gpu.confidential": _mode(nvml, lambda: nvml.nvmlSystemGetConfComputeState().ccFeature),
        "gpu.mps": "on" if _runs(_MPS, proc) else "off",
    }
    for index in range(count):
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(device)
        facts[f"gpu.{index}.name"] = _text(nvml.nvmlDeviceGetName(device))
        facts[f"gpu.{index}.uuid"] = _text(nvml.nvmlDeviceGetUUID(device))
        facts[f"gpu.{index}.memory"] = str(nvml.nvmlDeviceGetMemoryInfo(device).total)
        facts[f"gpu.{index}.capability"] = f"{major}.{minor}"
        facts[f"gpu.{index}.mig"] = _mode(nvml, nvml.nvmlDeviceGetMigMode, device)
        facts[f"gpu.{index}.persistence"] = _mode(nvml, nvml.nvmlDeviceGetPersistenceMode, device)
    return facts


def _mode(nvml: Any, question: Callable[..., Any], *arguments: Any) -> str:
    """on or off; what does not know the question (an older GPU, an older driver) is off."""
    try:
        answer = question(*arguments)
    except nvml.NVMLError:
        return "off"
    # NVML answers some questions with the present mode and the one after the next reset.
    return "on" if (answer[0] if isinstance(answer, (list, tuple)) else answer) else "off"


def _runs(name: bytes, proc: Path) -> bool:
    for comm in proc.glob("[0-9]*/comm"):
        try:
            if comm.read_bytes().rstrip(b"\n") == name:
                return True
        except OSError:
            continue  # it has ended
    return False


def _failed(error: Exception) -> Fingerprint:
    log.warning("the NVIDIA driver does not answer: %s", error)
    return {"gpu.error": str(error)}


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
