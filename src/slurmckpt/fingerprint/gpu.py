"""The node's NVIDIA GPUs and their driver, through NVML.

All GPUs of the node count, also those that other jobs use: CUDA's restore needs the same set of devices that the
kernel driver shows.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

from slurmckpt.fingerprint.compare import Fingerprint

log = logging.getLogger(__name__)


def gpu() -> Fingerprint:
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
        return _facts(nvml)
    except nvml.NVMLError as error:
        return _failed(error)
    finally:
        nvml.nvmlShutdown()


def _facts(nvml: Any) -> Fingerprint:
    count = nvml.nvmlDeviceGetCount()
    if count == 0:
        return {}
    facts = {"gpu.driver": _text(nvml.nvmlSystemGetDriverVersion()), "gpu.count": str(count)}
    for index in range(count):
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(device)
        facts[f"gpu.{index}.name"] = _text(nvml.nvmlDeviceGetName(device))
        facts[f"gpu.{index}.memory"] = str(nvml.nvmlDeviceGetMemoryInfo(device).total)
        facts[f"gpu.{index}.capability"] = f"{major}.{minor}"
        facts[f"gpu.{index}.mig"] = _mig(nvml, device)
    return facts


def _mig(nvml: Any, device: Any) -> str:
    try:
        mode, _ = nvml.nvmlDeviceGetMigMode(device)
    except nvml.NVMLError:
        return "off"  # GPUs that cannot be divided do not know the question
    return "on" if mode == nvml.NVML_DEVICE_MIG_ENABLE else "off"


def _failed(error: Exception) -> Fingerprint:
    log.warning("the NVIDIA driver does not answer: %s", error)
    return {"gpu.error": str(error)}


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
