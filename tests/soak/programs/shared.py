"""Two processes count in turns in a mapped file of /dev/shm, with a semaphore for each; the parent prints."""

import mmap
import multiprocessing
import os
import sys
import time
from multiprocessing.synchronize import Semaphore

count, pause = int(sys.argv[1]), float(sys.argv[2])


def child(memory: mmap.mmap, mine: Semaphore, other: Semaphore) -> None:
    """Change the number whenever it is our turn."""
    for _ in range(count):
        mine.acquire()
        number = int.from_bytes(memory[:8], "little") * 3 + 1 & (1 << 60) - 1
        memory[:8] = number.to_bytes(8, "little")
        other.release()


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    with open(f"/dev/shm/soak-{os.getpid()}", "wb+") as file:
        file.truncate(1 << 20)
        memory = mmap.mmap(file.fileno(), 1 << 20)
    memory[:8] = (7).to_bytes(8, "little")
    mine, other = context.Semaphore(0), context.Semaphore(0)
    worker = context.Process(target=child, args=(memory, other, mine))
    worker.start()
    for number in range(count):
        other.release()
        mine.acquire()
        print(number, int.from_bytes(memory[:8], "little"), flush=True)
        time.sleep(pause)
    worker.join()
    os.unlink(file.name)
    sys.exit(worker.exitcode or 0)
