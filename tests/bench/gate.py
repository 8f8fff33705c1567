"""What the boundary gate costs per call of NCCL while nobody asks for a boundary. Needs no root, no cluster and no GPU.

The plugin is called as NCCL 2.28.9 calls it; the time is that of all its callbacks for one call. The limit is 100 ns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "src"))

from slurmckpt.capture.gate.region import Region  # noqa: E402

LIMIT_NS = 100.0


def measure() -> tuple[float, float]:
    """Nanoseconds of one collective, and of one send: the best of several rounds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(["make", "-s", "-C", str(TREE / "gate"), f"BUILD={folder}"], check=True)
        source, program = TREE / "tests/bench/gate.c", folder / "gate"
        subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-o", program, source, "-ldl"], check=True)
        Region.create(folder / "region", -1, -1).close()
        environment = os.environ | {"SLURM_CKPT_GATE": str(folder / "region"), "SLURM_CKPT_GATE_NEXT": "none"}
        plugin = str(folder / "libnccl-profiler-slurmckpt.so")
        done = subprocess.run([program, plugin], env=environment, check=True, capture_output=True, text=True)
    collective, transfer = done.stdout.split()
    return float(collective), float(transfer)


if __name__ == "__main__":
    first, second = measure()
    print("\n## the gate without a request, per call of NCCL (all callbacks; limit 100 ns)")
    print(f"   ncclAllReduce: {first:.1f} ns, ncclSend: {second:.1f} ns", flush=True)
    sys.exit(max(first, second) > LIMIT_NS)
