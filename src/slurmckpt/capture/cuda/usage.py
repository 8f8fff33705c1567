"""How much GPU memory processes use, as NVML sees it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable
from typing import Any


def used_bytes(pids: Iterable[int]) -> int | None:
    """Bytes on all GPUs of the node that belong to these processes; None where NVML cannot tell.

    NVML counts contexts as well, which a checkpoint does not copy: it is never less than what will be needed.
    """
    wanted = set(pids)
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    total = 0
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(device):
                if process.pid in wanted:
                    if process.usedGpuMemory is None:
                        return None
                    total += process.usedGpuMemory
    except nvml.NVMLError:
        return None
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
    return total
