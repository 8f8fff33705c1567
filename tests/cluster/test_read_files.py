"""Files that jobs only read, and that are not there where they go on: in the node's own /tmp, or deleted meanwhile."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.harness import Cluster, Job, events, move, restored_from

ON_REQUEST = "--checkpoint-interval=infinite"
COUNT = 150

PREPARED = """
d=/tmp/of-job-$SLURM_JOB_ID
mkdir -p $d
seq 0 $((COUNT - 1)) >$d/stream; cp $d/stream $d/mapped
echo 'int next_number(void) { static int number; return number++; }' >$d/library.c
echo 'int next_number(void); int printf(const char *, ...); int fflush(void *); int usleep(unsigned);
int main(void) { for (int i = 0; i < COUNT; i++) { printf("program %d\\n", next_number()); fflush(0); usleep(30000); } }
' >$d/program.c
gcc -shared -fPIC -o $d/library.so $d/library.c && gcc -o $d/program $d/program.c $d/library.so
echo 'def numbers():
    yield from range(COUNT)' >$d/counting.py
rm $d/*.c
python3 reads.py stream $d/stream 0.03 &
python3 reads.py mapped $d/mapped 0.03 &
python3 reads.py library $d/library.so 0.03 &
python3 reads.py module $d/counting.py 0.03 &
$d/program &
while read -r line; do echo "$line"; sleep 0.03; done <<END
HERE
END
wait
"""
KINDS = ["stream", "mapped", "library", "module", "program", "here"]


def captured_and_moved(job: Job, kinds: list[str]) -> None:
    """Checkpoint when every part has begun, and move."""
    for kind in kinds:
        job.wait_output(f"^{kind} 10\\b")
    seq = job.checkpoint()
    move(job, job.node())
    assert restored_from(job) == seq


def test_what_is_read_in_the_nodes_own_tmp_comes_along(cluster: Cluster, directory: Path) -> None:
    """Open, mapped, as a library, and as a program; a module of Python's, and a here-document."""
    # More than fits into a pipe, so the shell has it in a file.
    here = "\n".join(f"here {number}{' ' * 1000}." for number in range(COUNT))
    script = PREPARED.replace("HERE", here).replace("COUNT", str(COUNT))
    job = cluster.submit(script, ON_REQUEST, directory=directory)
    captured_and_moved(job, KINDS)
    assert job.wait_end() == "COMPLETED", job.output()
    assert not events(job)
    lines = [" ".join(line.split()[:2]) for line in job.output().splitlines()]
    for kind in KINDS:
        assert [line for line in lines if line.startswith(kind)] == [f"{kind} {number}" for number in range(COUNT)]
    assert len(lines) == len(KINDS) * COUNT
