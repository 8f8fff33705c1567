"""The CUDA driver's checkpoint API, by NVIDIA's cuda-bindings.

Calls block, so they belong into threads; cuda-bindings release the GIL in all of them from 13.1 on (tried with a double
of libcuda: 12.9 does not). The caller must be root or have CAP_SYS_PTRACE.
"""

from __future__ import annotations

import enum
import importlib
import os
import re
from collections.abc import Sequence
from typing import Any, Protocol

from slurmckpt.capture.cuda import errors
from slurmckpt.capture.cuda.errors import CudaError, Unavailable

# cuda.h: CUDA 12.8, of driver 570, brought the checkpoint calls.
_FIRST_VERSION = 12080
_UNKNOWN = 999  # CUDA_ERROR_UNKNOWN


class State(enum.IntEnum):
    """CUprocessState of cuda.h. Any other value of a later driver is one that we do not know how to leave."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


class Driver(Protocol):
    """What is asked of the driver. pid: on this node. Everything raises CudaError."""

    def devices(self) -> list[str]:
        """The UUIDs of all GPUs of this node (32 hex digits), in PCI order."""

    def state(self, pid: int) -> State | None:
        """None for a process without CUDA state, also for one that is gone."""

    def lock(self, pid: int, timeout_ms: int) -> None:
        """RUNNING to LOCKED, when its GPU work has ended. After timeout_ms: CudaError 600, and it is RUNNING."""

    def checkpoint(self, pid: int) -> None:
        """LOCKED to CHECKPOINTED: GPU memory is in host memory, and no GPU is open any more."""

    def restore(self, pid: int, pairs: Sequence[tuple[str, str]]) -> None:
        """CHECKPOINTED to LOCKED. pairs: UUID at the checkpoint, UUID now, of every GPU; empty: the same GPUs."""

    def unlock(self, pid: int) -> None:
        """LOCKED to RUNNING."""


class Bindings:
    """The real driver through cuda-bindings."""

    def __init__(self) -> None:
        """Raises Unavailable."""
        # So that numbers mean the same here, for NVML and for Slurm.
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        try:
            self._cuda: Any = importlib.import_module("cuda.bindings.driver")
        except ImportError as error:
            raise Unavailable(
                f"cuda-bindings are not installed ({error}): pip install 'slurmckpt[cuda]' into slurmckpt's environment"
            ) from error
        missing = [name for name in ("CUcheckpointGpuPair", "cuCheckpointProcessLock") if not hasattr(self._cuda, name)]
        if missing:
            raise Unavailable("cuda-bindings are too old: 13.1 or newer is needed (pip install 'slurmckpt[cuda]')")
        try:
            (code,) = self._cuda.cuInit(0)
            known, self.version = self._cuda.cuDriverGetVersion()
        except RuntimeError as error:
            # What the bindings raise when there is no libcuda.so.1, or a function is not in it.
            raise Unavailable(f"the CUDA driver cannot be loaded ({error}): is libcuda.so.1 installed?") from error
        if int(code):
            raise Unavailable(errors.sentence("init", int(code)))
        if not int(known) and self.version < _FIRST_VERSION:
            release = f"{self.version // 1000}.{self.version % 1000 // 10}"
            raise Unavailable(
                f"the driver is too old: it knows CUDA {release}, and its checkpoint API came with 12.8 (driver 570)"
            )

    def devices(self) -> list[str]:
        cuda = self._cuda
        count = self._ask("devices", 0, cuda.cuDeviceGetCount)
        found = []
        for ordinal in range(count):
            device = self._ask("devices", 0, cuda.cuDeviceGet, ordinal)
            found.append(bytes(self._ask("devices", 0, cuda.cuDeviceGetUuid, device).bytes).hex())
        return found

    def state(self, pid: int) -> State | None:
        try:
            number = int(self._ask("state", pid, self._cuda.cuCheckpointProcessGetState, pid))
        except CudaError as error:
            if error.code == errors.NOT_INITIALIZED:
                return None
            raise
        return State(number) if number in State.__members__.values() else State.FAILED

    def lock(self, pid: int, timeout_ms: int) -> None:
        arguments = self._cuda.CUcheckpointLockArgs()
        arguments.timeoutMs = timeout_ms
        self._ask("lock", pid, self._cuda.cuCheckpointProcessLock, pid, arguments)

    def checkpoint(self, pid: int) -> None:
        self._ask("checkpoint", pid, self._cuda.cuCheckpointProcessCheckpoint, pid, None)

    def restore(self, pid: int, pairs: Sequence[tuple[str, str]]) -> None:
        arguments = None
        if pairs:
            arguments = self._cuda.CUcheckpointRestoreArgs()
            arguments.gpuPairs = [self._pair(old, new) for old, new in pairs]
            arguments.gpuPairsCount = len(pairs)
        self._ask("restore", pid, self._cuda.cuCheckpointProcessRestore, pid, arguments)

    def unlock(self, pid: int) -> None:
        self._ask("unlock", pid, self._cuda.cuCheckpointProcessUnlock, pid, None)

    def _pair(self, old: str, new: str) -> Any:
        pair = self._cuda.CUcheckpointGpuPair()
        pair.oldUuid = self._uuid(old)
        pair.newUuid = self._uuid(new)
        return pair

    def _uuid(self, digits: str) -> Any:
        """bytes of CUuuid is read-only: it is written where it lies."""
        import ctypes

        uuid = self._cuda.CUuuid()
        ctypes.memmove(int(uuid.getPtr()), bytes.fromhex(digits), 16)
        return uuid

    def _ask(self, call: str, pid: int, function: Any, *arguments: Any) -> Any:
        try:
            code, *answer = function(*arguments)
        except RuntimeError as error:
            # A function that this driver does not have.
            raise CudaError(call, errors.NOT_SUPPORTED, pid) from error
        except (ValueError, KeyError) as error:
            # A code of a driver that is newer than the bindings: "77 is not a valid CUresult", or (13.1) just 77.
            number = re.match(r"(\d+)\b", str(error))
            raise CudaError(call, int(number[1]) if number else _UNKNOWN, pid) from error
        if int(code):
            raise CudaError(call, int(code), pid)
        return answer[0] if answer else None
