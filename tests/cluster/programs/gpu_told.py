"""Ranks of NCCL's double on simulated devices, which tell each step to the batch script over TCP and wait for its answer.

gpu_told.py script STEPS        prints what both ranks tell of each step
gpu_told.py RANK STEPS          tells what it has on its device, the sum over both ranks, and the pid of a new process
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import socket
import subprocess
import sys
import time

from holding import hold  # type: ignore[import-not-found]

ADDRESS = ("127.0.0.1", 7391)
RANKS = 2
SUM, FLOAT64 = 0, 8


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


def script(steps: int) -> None:
    listener = socket.create_server(ADDRESS)
    streams = {}
    for _ in range(RANKS):
        stream = listener.accept()[0].makefile("rw")
        streams[stream.readline()] = stream
    for step in range(1, steps + 1):
        hold(step, steps)
        told = [streams[f"{rank}\n"].readline().split() for rank in range(RANKS)]
        print("step", step, *(word for words in told for word in words[:-1]), flush=True)
        print("pids", os.getpid(), *(words[-1] for words in told), flush=True)
        for stream in streams.values():
            stream.write(f"{step}\n")
            stream.flush()


def connected() -> socket.socket:
    while True:
        try:
            return socket.create_connection(ADDRESS)
        except ConnectionRefusedError:
            time.sleep(0.05)


def rank(me: int, steps: int) -> None:
    from gpu_rank import BYTES, check, cuda, launch  # type: ignore[import-not-found]

    context, pointer, comm = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), me))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuMemAlloc(ctypes.byref(pointer), ctypes.c_size_t(BYTES)))
    check(cuda.cuMemsetD8(pointer, ctypes.c_ubyte(me), ctypes.c_size_t(BYTES)))
    host, number = ctypes.create_string_buffer(BYTES), ctypes.c_double(me + 1)
    nccl, job = ctypes.CDLL("./libnccl.so.2"), os.environ["SLURM_JOB_ID"]
    assert nccl.ncclCommInitRank(ctypes.byref(comm), RANKS, UniqueId(job.encode()), me) == 0
    stream = connected().makefile("rw")
    stream.write(f"{me}\n")
    for step in range(1, steps + 1):
        launch(b"add_u32", pointer, ctypes.c_uint32(BYTES // 4), ctypes.c_uint32(step * (me + 1)))
        launch(b"meet", ctypes.c_uint64(int(job)), *map(ctypes.c_uint32, (RANKS, me, step)))
        place = ctypes.byref(number)
        assert nccl.ncclAllReduce(place, place, ctypes.c_size_t(1), FLOAT64, SUM, comm, None) == 0
        nccl.double_stream_synchronize(None)
        check(cuda.cuCtxSynchronize())
        check(cuda.cuMemcpyDtoH(host, pointer, ctypes.c_size_t(BYTES)))
        child = subprocess.run(["sh", "-c", "echo $$"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        stream.write(f"{hashlib.sha256(host.raw).hexdigest()[:16]} {number.value:g} {child}\n")
        stream.flush()
        assert stream.readline() == f"{step}\n"
        time.sleep(0.05)


if __name__ == "__main__":
    if sys.argv[1] == "script":
        script(int(sys.argv[2]))
    else:
        rank(int(sys.argv[1]), int(sys.argv[2]))
