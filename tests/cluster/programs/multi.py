"""What Python's multiprocessing shares. multi.py METHOD: fork, forkserver or spawn."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
from multiprocessing import shared_memory
from typing import Any

import look  # type: ignore[import-not-found]


def work(number: int) -> tuple[int, str]:
    return os.getpid(), hashlib.sha256(b"%d" % number).hexdigest()


def serve(questions: Any, answers: Any, semaphore: Any, total: Any, name: str) -> None:
    """Adds what comes to `total`, in shared memory of every kind, until None comes."""
    block: Any = shared_memory.SharedMemory(name)
    while (number := questions.get()) is not None:
        with semaphore, total.get_lock():
            total.value += number
            block.buf[number % block.size] = (block.buf[number % block.size] + 1) % 256
        answers.put((os.getpid(), number))
    block.close()


def main() -> None:
    context: Any = multiprocessing.get_context(sys.argv[1])
    block: Any = shared_memory.SharedMemory(create=True, size=300_000)
    block.buf[:4] = b"abcd"
    questions, answers = context.Queue(), context.JoinableQueue()
    semaphore, event, barrier = context.BoundedSemaphore(2), context.Event(), context.Barrier(1)
    total, array = context.Value("q", 7), context.Array("d", [1.5, 2.5])
    server = context.Process(target=serve, args=(questions, answers, semaphore, total, block.name))
    server.start()
    pool = context.Pool(2)
    pool.map(work, range(8))  # all workers are there
    manager = context.Manager()
    table = manager.dict(a=1)
    asked = 0

    def tell() -> None:
        nonlocal asked
        asked += 1
        before = total.value
        questions.put(1000)
        pid, number = answers.get(timeout=60)
        answers.task_done()
        print("server", pid == server.pid, number, total.value - before)
        print("block", hashlib.sha256(block.buf[:900]).hexdigest(), block.buf[1000] == asked)
        print("pool", sorted(digest for _, digest in pool.map(work, range(20))))
        print("array", list(array), "event", event.is_set(), "barrier", barrier.wait(10))
        print("table", dict(table))
        print("semaphore", semaphore.acquire(timeout=10), semaphore.release())
        print("names", sorted(name.split(".")[0] for name in os.listdir("/dev/shm") if "link_remap" in name))

    look.loop(tell)
    questions.put(None)
    server.join()
    pool.close()
    pool.join()
    manager.shutdown()
    block.close()
    block.unlink()
    print("done", asked, total.value - 7, server.exitcode, flush=True)


if __name__ == "__main__":
    main()
