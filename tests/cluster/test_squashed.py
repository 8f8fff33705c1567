"""A home on a file server that takes root for nobody: closed to all but its user, it is closed to CRIU, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.cluster.harness import TREE, Cluster, Job, move, restored_from

HOSTS = ("login", "n1", "n2")
SCRIPT = """#!/bin/bash
umask 077
python3 -I -u - >out <<'END' &
import mmap, os, time
log, data = open("log", "a"), open("data", "w+b")
data.truncate(4096)
mapped, script = mmap.mmap(data.fileno(), 4096), open("job.sh")
count = 0
while not os.path.exists("go"):
    log.write("x"), log.flush()
    mapped[0] = count % 200
    count += 1
    time.sleep(0.05)
print(os.fstat(log.fileno()).st_size == count, mapped[0] == (count - 1) % 200, script.read(11))
END
until [ -s log ]; do sleep 0.1; done
echo ready
wait
cat out
"""


@pytest.fixture
def closed(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, whose jobs are in a directory of mode 700 below /squashed, on all hosts."""
    real = cluster.home.parent / "squashed" / "alice"
    real.mkdir(parents=True, exist_ok=True)
    os.chown(real, 1000, 1000)
    real.chmod(0o700)
    program = cluster.home.parent / "squash.py"
    program.write_bytes((TREE / "tests/cluster/squash.py").read_bytes())
    for host in HOSTS:
        cluster.root(host, "umount --lazy /squashed", check=False)
        cluster.root(host, "mkdir -p /squashed && python3 /home/squash.py /home/squashed /squashed </dev/null")
    yield replace(cluster, home=real)
    for host in HOSTS:
        cluster.root(host, "umount --lazy /squashed")


def test_what_is_closed_to_root_comes_back(closed: Cluster) -> None:
    """Working directory, script, output, a log, and a file that is mapped, which root may not even look at."""
    directory = closed.directory("squashed")
    directory.chmod(0o700)
    assert "Permission denied" in closed.root("n1", "stat /squashed/alice/squashed", check=False).stderr
    (directory / "job.sh").write_text(SCRIPT)
    os.chown(directory / "job.sh", 1000, 1000)
    options = ["--chdir=/squashed/alice/squashed", "--output=job.out", "--checkpoint-interval=infinite", "--time=5"]
    number = closed.run("sbatch", "--parsable", *options, "/squashed/alice/squashed/job.sh").stdout
    job = Job(closed, int(number), directory / "job.out")
    job.wait_output("^ready$")
    assert job.checkpoint() == 1
    move(job, job.node())
    assert restored_from(job) == 1
    (directory / "go").touch()
    assert job.wait_end(60) == "COMPLETED", job.output()
    assert job.output() == "ready\nTrue True #!/bin/bash\n"
