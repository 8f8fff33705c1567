"""The file of the batch script, which its shell reads as it goes. Each node of the sandbox has a spool directory of its own name."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.harness import Cluster, chain, move, restored_from, wait_attempts

READERS = """[ "${1:-}" = again ] || "$BASH" "$0" again &
exec 9<"$0"
read -r -u 9 line; read -r -u 9 line
[ "${1:-}" != again ] || { until [ -e go ]; do sleep 0.1; done; read -r -u 9 line; echo "$line" >>read; exit; }
python3 chain.py 100 0.1
touch go
wait
read -r -u 9 line; echo "$line" >>read
echo ends
"""


def test_shells_read_on_where_they_were(cluster: Cluster, directory: Path) -> None:
    """Two shells and two more descriptors have the script open, each with a position of its own."""
    job = cluster.submit(READERS, "--checkpoint-interval=infinite", directory=directory)
    job.wait_output("^20 ")
    seq = job.checkpoint()
    job.wait_output("^40 ")
    move(job, job.node())
    assert restored_from(job) == seq
    assert job.wait_end() == "COMPLETED", job.output()
    assert job.output().splitlines() == [*chain(100), "ends"]
    # The script's third line, after "#!/bin/bash" and its first.
    third = READERS.splitlines()[1]
    assert (directory / "read").read_text().splitlines() == [third] * 2


def test_it_is_restored_again_from_there(cluster: Cluster, directory: Path) -> None:
    """The image of a restored shell names the file as it lies on that node."""
    job = cluster.submit("python3 chain.py 150 0.1\necho end", "--checkpoint-interval=infinite", directory=directory)
    for number in (1, 2):
        job.wait_output(f"^{number * 20} ")
        seq = job.checkpoint()
        move(job, job.node())
        wait_attempts(job, number + 1)
        assert restored_from(job) == seq
    assert job.wait_end() == "COMPLETED", job.output()
    assert job.output().splitlines() == [*chain(150), "end"]


def test_a_script_that_was_changed_is_a_cold_start(cluster: Cluster, directory: Path) -> None:
    """Nobody but an administrator can change it, in slurmctld's own copy."""
    job = cluster.submit("python3 chain.py 100 0.1\necho old", "--checkpoint-interval=infinite", directory=directory)
    job.wait_output("^20 ")
    job.checkpoint()
    cluster.root("ctl", f"sed -i s/old/new/ /var/spool/slurmctld/hash.*/job.{job.number}/script")
    move(job, job.node())
    line = job.wait_output("^slurmckpt: cold start: .*")[0]
    assert line.endswith("the batch script is not the one that ran at the checkpoint")
    assert job.wait_end() == "COMPLETED", job.output()
    assert job.output().splitlines() == [line, *chain(100), "new"]
