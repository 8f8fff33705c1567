"""Like torchrun: workers of one parent pass a number around by TCP, on the host's own name; the first prints it."""

import hashlib
import os
import socket
import sys
import time

count, pause, workers = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
listeners = [socket.create_server((socket.gethostname(), 0)) for _ in range(workers)]


def work(rank: int) -> None:
    """Take from the one before, change, give to the one after."""
    onward = socket.create_connection(listeners[(rank + 1) % workers].getsockname())
    before, _ = listeners[rank].accept()
    state = b"ring".ljust(32)
    for number in range(count):
        if rank == 0:
            print(number, state.hex(), flush=True)
            onward.sendall(hashlib.sha256(state).digest())
            time.sleep(pause)
        state = before.recv(32, socket.MSG_WAITALL)
        if len(state) < 32:
            sys.exit(f"worker {rank}: the connection from the one before ended")
        if rank != 0:
            onward.sendall(hashlib.sha256(state).digest())


children = []
for rank in range(workers):
    child = os.fork()
    if child == 0:
        work(rank)
        os._exit(0)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
