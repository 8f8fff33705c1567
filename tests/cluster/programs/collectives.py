"""Ranks of NCCL's double (a simulated device): collectives.py RANK STEPS SECONDS [HANG_AT]. Rank 0 prints a line for each step.

Rank 1 rests SECONDS before each step, while the other has enqueued its part. HANG_AT: once, it does not come at all to this
step, while rank 0 burns CPU time in its wait, as ranks do that wait for a GPU.
"""

import ctypes
import os
import sys
import threading
import time

FLOAT64, AVERAGE = 8, 4
rank, steps, rest = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
hang_at = int(sys.argv[4]) if len(sys.argv) > 4 else -1


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


nccl = ctypes.CDLL("./libnccl.so.2")
unique, communicator = UniqueId(), ctypes.c_void_p()
place = f"id.{os.environ.get('SLURM_JOB_ID', os.environ.get('RUN'))}"
if rank == 0:
    assert nccl.ncclGetUniqueId(ctypes.byref(unique)) == 0
    with open(place + ".new", "wb") as file:
        file.write(bytes(unique))
    os.rename(place + ".new", place)
while not os.path.exists(place):
    time.sleep(0.01)
with open(place, "rb") as given:
    unique = UniqueId.from_buffer_copy(given.read())
assert nccl.ncclCommInitRank(ctypes.byref(communicator), 2, unique, rank) == 0

numbers, sent, received = ((ctypes.c_double * 4000)(*[value + rank for value in range(4000)]) for _ in range(3))


def wait() -> None:
    """For the device; rank 0 does not sleep meanwhile."""
    waiter = threading.Thread(target=nccl.double_stream_synchronize, args=(None,))
    waiter.start()
    while rank == 0 and hang_at >= 0 and waiter.is_alive():
        pass
    waiter.join()


for step in range(steps):
    if rank == 1:
        if step == hang_at and not os.path.exists("hung"):
            open("hung", "w").close()
            time.sleep(1000)
        time.sleep(rest)
    for _ in range(3):
        nccl.ncclAllReduce(numbers, numbers, ctypes.c_size_t(4000), FLOAT64, AVERAGE, communicator, None)
    nccl.ncclGroupStart()
    nccl.ncclSend(numbers, ctypes.c_size_t(4000), FLOAT64, 1 - rank, communicator, None)
    nccl.ncclRecv(received, ctypes.c_size_t(4000), FLOAT64, 1 - rank, communicator, None)
    nccl.ncclGroupEnd()
    wait()
    for index in range(0, 4000, 7):
        numbers[index] = received[index] * 0.5 + step + rank
    if rank == 0:
        print(step, sum(numbers), flush=True)
assert nccl.ncclCommDestroy(communicator) == 0
