"""What the CUDA driver's answers mean for a job, each as one sentence with the remedy.

Codes: CUresult in NVIDIA's cuda.h. What they say of the checkpoint calls is documented in the CUDA driver API
reference, "CUDA Checkpointing"; NVIDIA/cuda-checkpoint's issues show 801, 304 and 401 for more than that.
"""

from __future__ import annotations

from slurmckpt.errors import SlurmckptError

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
ILLEGAL_STATE = 401
NOT_READY = 600
NOT_SUPPORTED = 801
# Not of cuda.h: the process state FAILED, which no call leads out of.
FAILED_STATE = -1

_UNSUPPORTED = (
    "its driver or program cannot be checkpointed (801): it needs driver 570 or newer on x86-64 (580 for several"
    " ranks), and neither managed memory (UVM), CUDA IPC, MPS nor MIG; `slurmckpt selftest --gpu` tells what this node"
    " can do"
)

# By call first, then for any call.
_SENTENCES: dict[tuple[str, int], str] = {
    ("lock", NOT_READY): "its GPU work does not end: it waits for another rank (a collective that is half done)",
    ("lock", ILLEGAL_STATE): "it is locked or checkpointed already, by something else than slurmckpt: run"
    " `cuda-checkpoint --toggle --pid` on it, or end it",
    (
        "checkpoint",
        OUT_OF_MEMORY,
    ): "there is not enough host memory for what it has on its GPUs: ask for more with --mem",
    ("restore", OUT_OF_MEMORY): "its GPU has not enough free memory for it: something else uses this GPU",
    ("restore", INVALID_VALUE): "the GPUs of this node do not match those of the checkpoint: a restore needs the same"
    " type, number and order",
}
_ANY: dict[int, str] = {
    FAILED_STATE: "the driver has lost its GPU state (FAILED)",
    INVALID_VALUE: "the driver does not accept the request (1): update slurmckpt or the driver",
    OUT_OF_MEMORY: "there is not enough memory (2)",
    NOT_INITIALIZED: "it has no CUDA state (any more)",
    34: "this libcuda.so.1 is a stub (34): remove the CUDA toolkit's stubs directory from the library path",
    35: "the driver is older than its library (35): reboot after a driver update",
    46: "its GPU is used exclusively or not available (46): check `nvidia-smi -q -d COMPUTE`",
    100: "no GPU is there (100): check `nvidia-smi`",
    101: "its GPU is not there (101): check `nvidia-smi`",
    214: "its GPU has an uncorrectable ECC error (214): drain the node",
    304: "the driver could not do it in the operating system (304): the coordinator must be root with CAP_SYS_PTRACE"
    " and reach /dev/nvidia*, and /proc must show the process",
    ILLEGAL_STATE: "it is in another state than expected (401): something else checkpoints it too",
    NOT_READY: "it is not ready (600)",
    700: "its program has failed on the GPU before (700): nothing can be saved of it",
    719: "its program has failed on the GPU before (719): nothing can be saved of it",
    NOT_SUPPORTED: _UNSUPPORTED,
    802: "the GPUs are not ready (802): is nvidia-fabricmanager running?",
    803: "driver and library do not match (803): reboot after a driver update",
    804: "this GPU or driver does not allow it (804)",
}
_DOING = {
    "init": "CUDA cannot be initialised",
    "state": "its CUDA state cannot be read",
    "lock": "it cannot be locked",
    "checkpoint": "its GPU state cannot be saved",
    "restore": "its GPU state cannot be restored",
    "unlock": "it cannot be unlocked",
    "devices": "the GPUs cannot be listed",
}


class CudaError(SlurmckptError):
    """The CUDA driver refused a call. call: `lock`, `restore`... code: CUresult. pid: on this node, 0 for none."""

    def __init__(self, call: str, code: int, pid: int = 0) -> None:
        super().__init__(sentence(call, code, pid))
        self.call = call
        self.code = code
        self.pid = pid


class Unavailable(SlurmckptError):
    """CUDA state cannot be captured on this node at all. The message says why, and what helps."""


class Busy(SlurmckptError):
    """Some ranks did not come to rest within the time for a lock. All are unlocked. pids: those that did not."""

    def __init__(self, text: str, pids: list[int]) -> None:
        super().__init__(text)
        self.pids = pids


def busy(pids: list[int], seconds: float) -> Busy:
    """The error that names them."""
    more = f" (and {len(pids) - 1} more)" if len(pids) > 1 else ""
    return Busy(
        f"NO_BOUNDARY: the GPU work of process {pids[0]}{more} did not end within {seconds:g} s: it waits for a rank"
        " that has not come",
        pids,
    )


def sentence(call: str, code: int, pid: int = 0) -> str:
    """One sentence about a refused call."""
    reason = _SENTENCES.get((call, code)) or _ANY.get(code) or f"the driver answers {code}"
    what = _DOING.get(call, f"{call} failed")
    return f"process {pid}: {what}: {reason}" if pid else f"{what}: {reason}"
