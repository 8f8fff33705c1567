"""What the network namespace of a restored pod costs: the same job before and after a move to another node."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.harness import TREE, Cluster, Job, move, restored_from

ROUNDS = 5
PORT = 7301

# One byte is answered with one byte; a first byte of 255 begins a stream, whose end is answered with its length.
SERVER = r"""
import os, socket, struct, sys, threading
def serve(one):
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with one:
        while first := one.recv(1):
            if first != b"\xff":
                one.sendall(first)
                continue
            total, buffer = 0, bytearray(1 << 18)
            while got := one.recv_into(buffer): total += got
            one.sendall(struct.pack("=Q", total))
def run(address):
    listener = socket.create_server(address)
    print("ready", flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
CLIENT = r"""
import statistics, time
def connect(address):
    one = socket.create_connection(address)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one
def latency(address):
    with connect(address) as one:
        times = []
        for _ in range(3000):
            began = time.perf_counter()
            one.sendall(b"x"); one.recv(1)
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6
def throughput(address):
    block = b"\xff" * (1 << 18)
    with connect(address) as one:
        began = time.perf_counter()
        while time.perf_counter() - began < 1.5: one.sendall(block)
        one.shutdown(socket.SHUT_WR)
        total, = struct.unpack("=Q", one.recv(8, socket.MSG_WAITALL))
        return total / (time.perf_counter() - began) / 1e6
name, outside = socket.gethostname(), (sys.argv[1], int(sys.argv[2]))
if os.fork() == 0: run((name, outside[1] + 1))
for number in range(100):
    while not os.path.exists(f"go-{number}"): time.sleep(0.05)
    for where, address in (("inside", (name, outside[1] + 1)), ("outside", outside)):
        print(number, where, f"{latency(address):.1f} us {throughput(address):.0f} MB/s", flush=True)
    print(number, "done", flush=True)
"""


@contextmanager
def server() -> Iterator[None]:
    """The peer outside, on the controller's host."""
    command = [str(TREE / "sandbox/cluster"), "run", "--node", "ctl", "--", "python3", "-c"]
    process = subprocess.Popen([*command, f"{SERVER}run(('', {PORT}))"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield
    finally:
        process.terminate()
        process.wait()


def network(cluster: Cluster) -> None:
    """Round trips and streams, inside the pod by the node's own name and to another host."""
    directory = cluster.directory("bench-network")
    (directory / "program.py").write_text(SERVER + CLIENT)
    with server():
        job = cluster.submit(
            f"exec python3 program.py ctl {PORT}", "--checkpoint-interval=infinite", directory=directory
        )
        try:
            job.wait_output("^ready$")
            before = [measure(job, directory, number) for number in range(ROUNDS)]
            job.checkpoint()
            move(job, job.node())
            restored_from(job)
            after = [measure(job, directory, number) for number in range(ROUNDS, 2 * ROUNDS)]
        finally:
            job.cancel()
    for where in ("inside", "outside"):
        for index, unit in enumerate(("us a round trip", "MB/s")):
            print(
                f"   {where}: {spread([one[where][index] for one in before])} {unit} in the node's network,"
                f" {spread([one[where][index] for one in after])} restored in its own"
            )


def measure(job: Job, directory: Path, number: int) -> dict[str, tuple[float, float]]:
    """One round: by place, microseconds and megabytes per second."""
    (directory / f"go-{number}").touch()
    job.wait_output(f"^{number} done$", 60)
    found = re.findall(rf"^{number} (\w+) ([0-9.]+) us ([0-9]+) MB/s$", job.output(), re.MULTILINE)
    return {where: (float(latency), float(throughput)) for where, latency, throughput in found}


def spread(values: list[float]) -> str:
    """Median, lowest and highest."""
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.0f} ({ordered[0]:.0f}-{ordered[-1]:.0f})"
