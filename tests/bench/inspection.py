"""How long one look at a pod takes before it is frozen: 64 processes with 1,000 descriptors in all. Needs root, no cluster.

python -m tests.bench.inspection
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from slurmckpt.capture.preflight import scan

PROCESSES = 64
ROUNDS = 15
# Pipes, files that are written, a socketpair, a listening socket; and what a Python program has mapped.
HOLD = """
import asyncio, ctypes, json, os, signal, socket, ssl, sys, tempfile
{fork}
keep = [os.pipe() for _ in range(4)], [tempfile.NamedTemporaryFile() for _ in range(2)], socket.socketpair()
listening = socket.create_server(("127.0.0.1", 0))
print("ready", flush=True)
signal.pause()
"""
# Processes that share all mappings, as the workers of a DataLoader, and such that share none, as ranks.
FORKED = HOLD.format(fork=f"any(os.fork() == 0 for _ in range({PROCESSES} - 1))")
EXECUTED = f"""
import os, sys
any(os.fork() == 0 for _ in range({PROCESSES} - 1))
os.execv(sys.executable, [sys.executable, "-c", {HOLD.format(fork="")!r}])
"""


def children(pid: int) -> list[int]:
    """The pids of the children of a process."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def look(program: str) -> tuple[list[float], list[float], int]:
    """Seconds of each round, seconds of processor time, and how many descriptors there were."""
    command = ["unshare", "--pid", "--mount", "--ipc", "--fork", "--mount-proc", "--kill-child"]
    command += ["sh", "-c", 'setsid "$0" -c "$1" & wait', sys.executable, program]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as pod:
        try:
            return rounds(pod)
        finally:
            subprocess.run(["pkill", "-KILL", "-P", str(pod.pid)], check=True)


def rounds(pod: subprocess.Popen[bytes]) -> tuple[list[float], list[float], int]:
    """look() at the pod below a process that prints a line for each one that is ready."""
    assert pod.stdout is not None
    for _ in range(PROCESSES):
        pod.stdout.readline()
    (init,) = children(pod.pid)
    (leader,) = children(init)
    known = set(scan(init, leader).external)
    times, used = [], []
    for _ in range(ROUNDS):
        began, used_before = time.perf_counter(), time.process_time()
        found = scan(init, leader, known, shim_pid=os.getpid())
        times.append(time.perf_counter() - began)
        used.append(time.process_time() - used_before)
    assert found.refusals == [] and len(found.processes) == PROCESSES, found.refusals
    count = sum(len(os.listdir(f"/proc/{process.pid}/fd")) for process in found.processes)
    return times, used, count


def main() -> None:
    """Print two lines for each kind of pod."""
    for kind, program in (("forked", FORKED), ("executed", EXECUTED)):
        times, used, count = look(program)
        for what, seconds in (("", times), (" (processor time)", used)):
            print(
                f"look at {PROCESSES} {kind} processes with {count} descriptors{what}:"
                f" {statistics.median(seconds) * 1e3:.0f} ms ({min(seconds) * 1e3:.0f}-{max(seconds) * 1e3:.0f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
