"""Numbers for docs/performance.md: ours beside a peer in the same run, in turns, as ratios of medians. Needs root and a sandbox cluster.

make bench, or a part of it: python tests/bench/run.py [look|freeze|cpu|output|prolog|start|requeue|network]...
"""

from __future__ import annotations

import base64
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import zstandard

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE), str(TREE / "src")]

from tests.bench import inspection  # noqa: E402
from tests.bench.network import network  # noqa: E402
from tests.cluster.harness import Cluster, Job, wait_for  # noqa: E402

ROUNDS = 9
TRAIN = """
export MASTER_ADDR=$(hostname) MASTER_PORT=$((20000 + SLURM_JOB_ID)) USE_LIBUV=0
srun -n2 python3 train.py --steps 100000
"""


def main() -> None:
    """Measure everything, or the parts that are named, and print a table."""
    wanted = sys.argv[1:] or [*PARTS, "look"]
    if unknown := [name for name in wanted if name not in PARTS and name != "look"]:
        sys.exit(f"{unknown[0]!r} is no part of the bench: it has look, {', '.join(PARTS)}")
    if "look" in wanted:
        print("\n## one look at a pod, before it is frozen", flush=True)
        inspection.main()
    if wanted == ["look"]:
        return
    subprocess.run([str(TREE / "sandbox/cluster"), "up", "--nodes", "2"], check=True)
    home = subprocess.run(
        [str(TREE / "sandbox/cluster"), "path"], check=True, capture_output=True, text=True
    ).stdout.strip()
    cluster = Cluster(Path(home) / "alice")
    for name, (title, measure) in PARTS.items():
        if name in wanted:
            print(f"\n## {title}", flush=True)
            measure(cluster)


def freeze(cluster: Cluster) -> None:
    """CRIU's own frozen time in both cases (stats-dump), and our whole freeze as the manifest has it."""
    directory = cluster.directory("bench-freeze")
    job = cluster.submit(
        TRAIN,
        "--checkpoint-interval=infinite",
        "--checkpoint-keep=100",
        "--ntasks=2",
        "--mem=4000",
        directory=directory,
    )
    try:
        job.wait_output("^step 5 ")
        node = job.node()
        bare: list[float] = []
        ours: list[float] = []
        whole: list[float] = []
        for number in range(ROUNDS + 1):
            seq = job.checkpoint()
            checkpoint = next((cluster.home.parent.parent / "store").glob(f"*/alice/{job.number}/{seq}"))
            manifest = json.loads((checkpoint / "manifest.json").read_text())
            kept = cluster.root(node, f"ls /store/*/alice/{job.number}/{seq}/0/images/stats-dump").stdout.strip()
            frozen = frozen_seconds(unpacked(checkpoint / Path(kept).relative_to(Path(kept).parents[2])))
            alone = bare_dump(cluster, node, job, manifest)
            if number:  # the first use of memory is slow on a virtual machine
                ours.append(frozen)
                whole.append(manifest["freeze_seconds"])
                bare.append(alone)
        compare("CRIU's frozen time", ours, bare, "s")
        compare(
            "whole freeze as we count it (from before CRIU stops the first rank until it has let the last one go)",
            whole,
            bare,
            "s",
        )
        size = sum(file["size"] for file in manifest["files"])
        print(f"   image {size / 1e6:.0f} MB")
    finally:
        job.cancel()


def bare_dump(cluster: Cluster, node: str, job: Job, manifest: dict[str, object]) -> float:
    """`criu dump` of the ranks' tree by hand, into the same file system; CRIU's frozen time in seconds."""
    steps = manifest["steps"]
    assert isinstance(steps, list)
    step = next(each for each in steps if each["step"] == "0")
    keys = {key for task in step["tasks"] for key in task["descriptors"].values() if key.startswith("file[")}
    external = " ".join(f"--external '{key}'" for key in sorted(keys))
    script = f"""set -e
init=$(cut -d' ' -f1 /run/slurmckpt/{job.number}/pods/0.pid)
d=/var/lib/slurmckpt/{job.number}/bare; rm -rf $d; mkdir -p $d
real="--real-id {step["uid"]}:{step["gid"]}"
[ $((0x$(sed -n 's/^CapEff:.//p' /proc/self/status) >> 24 & 1)) = 0 ] || real=
/usr/libexec/slurmckpt/enter --pid $init $real -- /usr/sbin/criu dump -t {step["leader_pid"]} -D $d \\
    --leave-running --tcp-established --network-lock skip --manage-cgroups=ignore --file-locks --link-remap -v4 -o dump.log {external}
base64 -w0 $d/stats-dump; rm -rf $d"""
    return frozen_seconds(base64.b64decode(cluster.root(node, script).stdout))


def unpacked(path: Path) -> bytes:
    """A file of the store."""
    data = path.read_bytes()
    return zstandard.ZstdDecompressor().stream_reader(data).read() if data[:4] == b"\x28\xb5\x2f\xfd" else data


def frozen_seconds(stats: bytes) -> float:
    """frozen_time of a stats-dump image: two magics, a length, a stats_entry (images/stats.proto of CRIU)."""
    (length,) = struct.unpack_from("<I", stats, 8)
    dump = nested(stats[12 : 12 + length], 1)
    return number(dump, 2) / 1e6


def nested(data: bytes, field: int) -> bytes:
    """A message inside a message."""
    value = fields(data)[field]
    assert isinstance(value, bytes)
    return value


def number(data: bytes, field: int) -> int:
    """A varint of a message."""
    value = fields(data)[field]
    assert isinstance(value, int)
    return value


def fields(data: bytes) -> dict[int, int | bytes]:
    """The fields of a protobuf message, by number: varints as int, nested messages as bytes."""
    found: dict[int, int | bytes] = {}
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while position < len(data):
        key = varint()
        if key & 7 == 0:
            found[key >> 3] = varint()
        else:
            length = varint()
            found[key >> 3] = data[position : position + length]
            position += length
    return found


def steady_cpu(cluster: Cluster) -> None:
    """A loop that takes about a second, timed inside the step."""
    program = (
        "import time; t = time.perf_counter(); sum(i * i for i in range(6_000_000)); print(time.perf_counter() - t)"
    )
    in_turns(cluster, f'srun python3 -c "{program}"', lambda output: float(output.split()[-1]), "CPU-bound loop", "s")


def steady_output(cluster: Cluster) -> None:
    """200 MB of lines through the task's stdout to a file."""
    script = "rm -f big; s=$(date +%s.%N); srun -o big sh -c 'yes 0123456789012345678901234567890123456789 | head -c 200000000'; e=$(date +%s.%N); echo $s $e"

    def seconds(output: str) -> float:
        start, end = output.split()[-2:]
        return float(end) - float(start)

    in_turns(cluster, script, seconds, "200 MB of output", "s", rounds=3)


def step_start(cluster: Cluster) -> None:
    """srun true, as the script sees it."""
    script = "for i in 1 2 3 4 5 6 7 8 9 10; do s=$(date +%s%N); srun -n2 true; e=$(date +%s%N); echo $(((e - s) / 1000)); done"
    in_turns(
        cluster,
        script,
        lambda output: statistics.median(int(word) for word in output.split()) / 1000,
        "srun -n2 true",
        "ms",
        rounds=3,
    )


def in_turns(
    cluster: Cluster, script: str, read: Callable[[str], float], what: str, unit: str, rounds: int = 5
) -> None:
    """Run a script with and without checkpoints in turns."""
    directory = cluster.directory("bench-turns")
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        for options, into in (((), theirs), (("--checkpoint-interval=10m",), ours)):
            job = cluster.submit(script, *options, "--ntasks=2", directory=directory)
            assert job.wait_end() == "COMPLETED", job.output()
            into.append(read(job.output()))
    compare(what, ours, theirs, unit)


def prolog(cluster: Cluster) -> None:
    """The script as slurmd runs it for a job that did not ask; beside it an empty script."""
    loop = "i=0; s=$(date +%s%N); while [ $i -lt 200 ]; do {command}; i=$((i+1)); done; e=$(date +%s%N); echo $(((e - s) / 200000))"
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(ROUNDS):
        environment = "env -i SLURM_JOB_ID=1 SLURM_JOB_UID=1000"
        for command, into in (
            (f"{environment} /bin/sh -c :", theirs),
            (f"{environment} /usr/libexec/slurmckpt/prolog", ours),
        ):
            into.append(int(cluster.root("n1", loop.format(command=command)).stdout) / 1000)
    compare("prolog, against `sh -c :`", ours, theirs, "ms")
    prepared = (
        "env -i SLURM_JOB_ID=999999 SLURM_JOB_UID=1000 SPANK__SLURM_SPANK_OPTION_slurmckpt_checkpoint_interval=10m"
    )
    script = f"s=$(date +%s%N); {prepared} /usr/libexec/slurmckpt/prolog; e=$(date +%s%N); SLURM_JOB_ID=999999 /usr/libexec/slurmckpt/epilog; echo $(((e - s) / 1000))"
    times = [int(cluster.root("n1", script).stdout) / 1000 for _ in range(ROUNDS)]
    print(f"   prolog of a job with checkpoints (starts the coordinator): median {statistics.median(times):.0f} ms")


def requeue(cluster: Cluster) -> None:
    """Where the time goes between `scontrol requeue` and the first new step."""
    directory = cluster.directory("bench-requeue")
    job = cluster.submit(TRAIN, "--checkpoint-interval=infinite", "--ntasks=2", "--mem=4000", directory=directory)
    try:
        job.wait_output("^step 20 ")
        job.checkpoint()
        boundary = len(re.findall("^step", job.output(), re.MULTILINE))
        began = time.time()
        job.requeue()
        wait_for("the next attempt", lambda: len(job.status()["attempts"]) == 2)
        wait_for("the first new step", lambda: restored_and_past(job, boundary), 60)
        first = time.time()
        attempt = job.status()["attempts"][-1]
        print(
            f"   requeue to coordinator (Slurm's own delay: epilog, requeue_delay, scheduler): {attempt['started'] - began:.1f} s"
        )
        print(
            f"   coordinator to first new step (fetch, verify, restore, one step): {first - attempt['started']:.1f} s"
        )
        print(f"   of that, restore: {attempt['restored_seconds']:.2f} s")
    finally:
        job.cancel()


def restored_and_past(job: Job, boundary: int) -> bool:
    """Whether the restored job has printed more than the boundary."""
    attempts = job.status()["attempts"]
    return bool(attempts[-1]["restored_from"]) and len(re.findall("^step", job.output(), re.MULTILINE)) > boundary


def compare(what: str, ours: list[float], theirs: list[float], unit: str) -> None:
    """One line: medians, ratio of medians, and the spread."""
    mine, peer = statistics.median(ours), statistics.median(theirs)
    print(
        f"   {what}: ours {mine:.3f} {unit} ({min(ours):.3f}-{max(ours):.3f}), peer {peer:.3f} {unit}"
        f" ({min(theirs):.3f}-{max(theirs):.3f}), ratio {mine / peer:.3f}",
        flush=True,
    )


PARTS = {
    "freeze": ("freeze, against a bare criu dump of the same tree", freeze),
    "cpu": ("steady state: a CPU-bound step, against the same step without us", steady_cpu),
    "output": ("steady state: a step that prints 200 MB, against the same step without us", steady_output),
    "prolog": ("prolog of a job without checkpoints", prolog),
    "start": ("start of a step, against the same step without us", step_start),
    "requeue": ("from requeue to the first new step of the training", requeue),
    "network": ("network of a restored pod, against the node's own", network),
}

if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("make bench needs root")
    main()
