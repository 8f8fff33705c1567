"""A rank on a simulated device, through libcuda alone (ctypes): it does what its standard input says, line by line.

alloc BYTES VALUE       device memory, filled       add SUMMAND         a kernel over it, as 32-bit words
launch KEY MEMBERS ME ROUND    a kernel that waits for its peers        sync       until all work has ended
sha                     prints SHA-256 of the device memory             fork       a child that does nothing
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import time

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
    check(cuda.cuInit(0))
    context, pointer, size = ctypes.c_uint64(), ctypes.c_uint64(), 0
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), int(os.environ.get("DEVICE", "0"))))
    check(cuda.cuCtxSetCurrent(context))
    print("ready", os.getpid(), flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        numbers = [int(word) for word in words]
        answer = "ok"
        if verb == "alloc":
            size = numbers[0]
            check(cuda.cuMemAlloc(ctypes.byref(pointer), ctypes.c_size_t(size)))
            check(cuda.cuMemsetD8(pointer, ctypes.c_ubyte(numbers[1]), ctypes.c_size_t(size)))
        elif verb == "add":
            launch(b"add_u32", pointer, ctypes.c_uint32(size // 4), ctypes.c_uint32(numbers[0]))
        elif verb == "launch":
            launch(b"meet", ctypes.c_uint64(numbers[0]), *(ctypes.c_uint32(number) for number in numbers[1:]))
        elif verb == "sync":
            check(cuda.cuCtxSynchronize())
        elif verb == "sha":
            host = ctypes.create_string_buffer(size)
            check(cuda.cuMemcpyDtoH(host, pointer, ctypes.c_size_t(size)))
            answer = hashlib.sha256(host.raw).hexdigest()
        elif verb == "fork":
            child = os.fork()
            if child == 0:
                time.sleep(600)
                os._exit(0)
            answer = str(child)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
