"""The file of the batch script, which its shell reads as it goes. Each node of the sandbox has a spool directory of its own name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, chain, finish, move, restored_from, wait_attempts, wait_for

READERS = """[ "${1:-}" = again ] || "$BASH" "$0" again &
exec 9<"$0"
read -r -u 9 line; read -r -u 9 line
[ "${1:-}" != again ] || { until [ -e read-on ]; do sleep 0.1; done; read -r -u 9 line; echo "$line" >>read; exit; }
python3 chain.py 100 0.1
touch read-on
wait
read -r -u 9 line; echo "$line" >>read
echo ends
"""


def test_shells_read_on_where_they_were(cluster: Cluster, directory: Path) -> None:
    """Two shells and two more descriptors have the script open, each with a position of its own."""
    job = cluster.submit(READERS, "--checkpoint-interval=infinite", directory=directory, held=True)
    job.wait_output("^20 ")
    seq = job.checkpoint()
    job.wait_output("^40 ")
    move(job, job.node())
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    assert job.output().splitlines() == [*chain(100), "ends"]
    # The script's third line, after "#!/bin/bash" and its first.
    third = READERS.splitlines()[1]
    assert (directory / "read").read_text().splitlines() == [third] * 2


SPAWNS = """#!/usr/bin/env python3
import hashlib, multiprocessing, os, subprocess, time

def digest(data):
    return hashlib.sha256(data).digest()

if __name__ == "__main__":
    state = b"start"
    for number in range(COUNT):
        # As in programs/holding.py, which this script does not find from where it lies.
        while number >= COUNT * 3 // 4 and os.path.exists("hold"):
            time.sleep(0.05)
        with multiprocessing.get_context(METHOD).Pool(1) as pool:
            state = pool.apply(digest, (state,))
        print(number, state.hex(), flush=True)
        time.sleep(0.1)
    print(subprocess.run(["head", "-n1", __file__], capture_output=True, text=True, check=True).stdout, end="")
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_path_that_programs_remember_leads_to_it(cluster: Cluster, directory: Path, method: str) -> None:
    """Workers that Python's multiprocessing starts load the script by it; from a node on which it began, over another."""
    count = 20
    script = SPAWNS.replace("COUNT", str(count)).replace("METHOD", repr(method))
    job = cluster.submit(script, "--checkpoint-interval=infinite", directory=directory, held=True)
    first = job.wait_running()
    job.wait_output("^5 ")
    seq = job.checkpoint()
    move(job, first)
    assert restored_from(job) == seq
    link = f"/var/spool/slurmd.{first}/job{job.number:05d}"
    second = job.node()
    assert finish(job) == "COMPLETED", job.output()
    assert job.output().splitlines() == [*chain(count), "#!/usr/bin/env python3"]
    cluster.all_idle()
    wait_for("the link to be gone", lambda: cluster.root(second, f"test ! -L {link}", check=False).returncode == 0)


def test_it_is_restored_again_from_there(cluster: Cluster, directory: Path) -> None:
    """The image of a restored shell names the file as it lies on that node."""
    job = cluster.submit(
        "python3 chain.py 150 0.1\necho end", "--checkpoint-interval=infinite", directory=directory, held=True
    )
    for number in (1, 2):
        job.wait_output(f"^{number * 20} ")
        seq = job.checkpoint()
        move(job, job.node())
        wait_attempts(job, number + 1)
        assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    assert job.output().splitlines() == [*chain(150), "end"]


def test_a_script_that_was_changed_is_a_cold_start(cluster: Cluster, directory: Path) -> None:
    """Nobody but an administrator can change it, in slurmctld's own copy."""
    job = cluster.submit(
        "python3 chain.py 100 0.1\necho old", "--checkpoint-interval=infinite", directory=directory, held=True
    )
    job.wait_output("^20 ")
    job.checkpoint()
    cluster.root("ctl", f"sed -i s/old/new/ /var/spool/slurmctld/hash.*/job.{job.number}/script")
    move(job, job.node())
    line = job.wait_output("^slurmckpt: cold start: .*")[0]
    assert line.endswith("the batch script is not the one that ran at the checkpoint")
    assert finish(job) == "COMPLETED", job.output()
    assert job.output().splitlines() == [line, *chain(100), "new"]
