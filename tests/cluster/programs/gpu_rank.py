"""A rank on a simulated device: each step adds to its device memory, meets its peers in a kernel, and prints what it has.

gpu_rank.py STEPS MEMBERS MEMBER MEETING [DEVICE]        EXTRA_BYTES: more device memory, which it never touches
See programs/holding.py.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import time

from holding import hold  # type: ignore[import-not-found]

BYTES = 4 << 20
cuda = ctypes.CDLL("libcuda.so.1")


def check(code: int) -> None:
    if code:
        raise SystemExit(f"the simulated driver answers {code}")


def launch(name: bytes, *arguments: ctypes._SimpleCData[int]) -> None:
    function = ctypes.c_uint64()
    check(cuda.cuModuleGetFunction(ctypes.byref(function), ctypes.c_uint64(1), name))
    places = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(each) for each in arguments])
    check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, ctypes.c_void_p(0), places, None))


def main() -> None:
    steps, members, member, meeting, device = [*map(int, sys.argv[1:]), int(sys.argv[3])][:5]
    context, pointer = ctypes.c_uint64(), ctypes.c_uint64()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuMemAlloc(ctypes.byref(pointer), ctypes.c_size_t(BYTES)))
    check(cuda.cuMemsetD8(pointer, ctypes.c_ubyte(member), ctypes.c_size_t(BYTES)))
    if extra := int(os.environ.get("EXTRA_BYTES", "0")):
        check(cuda.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(extra)))
    host = ctypes.create_string_buffer(BYTES)
    if member == 0:
        print("nccl", os.environ.get("NCCL_P2P_DISABLE"), flush=True)
    for step in range(1, steps + 1):
        hold(step, steps)
        launch(b"add_u32", pointer, ctypes.c_uint32(BYTES // 4), ctypes.c_uint32(step * (member + 1)))
        launch(b"meet", ctypes.c_uint64(meeting), *map(ctypes.c_uint32, (members, member, step)))
        check(cuda.cuCtxSynchronize())
        check(cuda.cuMemcpyDtoH(host, pointer, ctypes.c_size_t(BYTES)))
        if member == 0:
            print("step", step, hashlib.sha256(host.raw).hexdigest()[:16], flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
