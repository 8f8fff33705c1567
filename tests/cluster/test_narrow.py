"""Jobs whose processes leave CRIU no room: they are captured and restored all the same, and find what they had."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.harness import Cluster, move, restored_from

# Soft limits: the hard ones of some test machines nobody can lift.
SCRIPT = """
until_go() { until [ -e go ]; do sleep 0.1; done; }
(ulimit -S -f 8; echo ready >files; until_go; echo "files $(ulimit -f)" >>files) &
for kind in AS DATA; do
    python3 - $kind >$kind <<'END' &
import mmap, os, resource, sys, time
kind = getattr(resource, f"RLIMIT_{sys.argv[1]}")
field = {"AS": "VmSize:", "DATA": "VmData:"}[sys.argv[1]]
used = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))
resource.setrlimit(kind, (used + 65536, resource.RLIM_INFINITY))
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.1)
try:
    mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE)
except (OSError, MemoryError):
    print("full", resource.getrlimit(kind) == (used + 65536, resource.RLIM_INFINITY))
END
done
until [ "$(grep -h ready files AS DATA | wc -l)" = 3 ]; do sleep 0.1; done
echo all ready
wait
cat files AS DATA
"""


def test_limits_on_files_and_memory_that_criu_would_run_into(cluster: Cluster, directory: Path) -> None:
    """CRIU's log is larger than the files may be, and its code in the processes needs more memory than they have."""
    job = cluster.submit(SCRIPT, "--checkpoint-interval=infinite", "--time=5", directory=directory)
    job.wait_output("^all ready$")
    assert job.checkpoint() == 1
    assert job.checkpoint() == 2  # all of them have survived the first one
    move(job, job.node())
    assert restored_from(job) == 2
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    expected = ["all ready", "ready", "files 8", "ready", "full True", "ready", "full True"]
    assert job.output().splitlines() == expected
