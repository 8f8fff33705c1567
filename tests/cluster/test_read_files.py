"""Files that jobs only read, and that are not there where they go on: in the node's own /tmp, or deleted meanwhile."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.harness import Cluster, Job, drained, events, finish, move, restored_from, settings, wait_for

ON_REQUEST = "--checkpoint-interval=infinite"
COUNT = 150

PREPARED = """
d=/tmp/of-job-$SLURM_JOB_ID
mkdir -p $d
seq 0 $((COUNT - 1)) >$d/stream; cp $d/stream $d/mapped
echo 'int next_number(void) { static int number; return number++; }' >$d/library.c
echo 'int next_number(void); int printf(const char *, ...); int fflush(void *); int usleep(unsigned);
int access(const char *, int);
int main(void) { for (int i = 0; i < COUNT; i++) { while (i > COUNT / 2 && !access("hold", 0)) usleep(30000); printf("program %d\\n", next_number()); fflush(0); usleep(30000); } }
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
n=0
while read -r line; do
    while [ $((n++)) -gt $((COUNT / 2)) -a -e hold ]; do sleep 0.1; done
    echo "$line"; sleep 0.03
done <<END
HERE
END
wait
"""
KINDS = ["stream", "mapped", "library", "module", "program", "here"]


def there(cluster: Cluster, node: str, path: str) -> bool:
    return cluster.root(node, f"test -e {path}", check=False).returncode == 0


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
    job = cluster.submit(script, ON_REQUEST, directory=directory, held=True)
    captured_and_moved(job, KINDS)
    assert finish(job) == "COMPLETED", job.output()
    assert not events(job)
    lines = [" ".join(line.split()[:2]) for line in job.output().splitlines()]
    for kind in KINDS:
        assert [line for line in lines if line.startswith(kind)] == [f"{kind} {number}" for number in range(COUNT)]
    assert len(lines) == len(KINDS) * COUNT


# Everything that it makes lies in the node's own /tmp: sources, objects, programs, and gcc's temporary files, of which
# most are open in no process at a given moment.
COMPILES = """
home=$PWD; mkdir -p /tmp/build-$SLURM_JOB_ID && cd /tmp/build-$SLURM_JOB_ID
for part in a b c; do
    for n in $(seq 200); do echo "double $part$n(double x) { return x * $n + NUMBER; }"; done >$part.c
done
echo 'double a7(double), b8(double), c9(double); int printf(const char *, ...);
int main(void) { return printf("compiled %d %g\\n", NUMBER, a7(1) + b8(1) + c9(1)) < 0; }' >main.c
printf 'prog: main.c a.o b.o c.c\\n\\tgcc -O2 -DNUMBER=$(n) main.c c.c a.o b.o -o prog\\n' >Makefile
printf '%%.o: %%.c\\n\\tgcc -O2 -DNUMBER=$(n) -c $< -o $@\\n' >>Makefile
for n in $(seq COUNT); do
    until [ $n -le HELD_AT -o ! -e "$home/hold" ]; do sleep 0.1; done
    make -s -B -j2 n=$n prog && ./prog || exit 1
done
"""
BUILDS, HELD_AT = 16, 12


def test_a_compiler_goes_on_where_it_was(cluster: Cluster, directory: Path) -> None:
    """In the middle of make, gcc and ld, whatever these have written and closed already."""
    script = COMPILES.replace("COUNT", str(BUILDS)).replace("HELD_AT", str(HELD_AT))
    job = cluster.submit(script, ON_REQUEST, "--ntasks=2", directory=directory, held=True)
    job.wait_output("^compiled 3 ")
    seq = job.checkpoint()
    move(job, job.node())
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    assert not events(job)
    # The functions of one line each: 7 + 8 + 9, and the number three times.
    assert job.output().splitlines() == [f"compiled {n} {24 + 3 * n}" for n in range(1, BUILDS + 1)]


IN_ITS_DIRECTORY = """
home=$PWD
cd $(mktemp -d) && mkdir empty && echo unopened >data && ln -s data link && ln -s /nowhere empty/nowhere
for n in $(seq COUNT); do while [ $n -gt $((COUNT / 2)) -a -e $home/hold ]; do sleep 0.1; done; echo "$n $(cat link) $(readlink empty/nowhere) $(ls | tr '\\n' ' ')"; sleep 0.1; done
"""


def test_a_working_directory_in_tmp_comes_along_beside_another_job(cluster: Cluster, directory: Path) -> None:
    """What that has put into /tmp does not."""
    other = cluster.submit("touch /tmp/of-job-$SLURM_JOB_ID; sleep 300", "--nodelist=n1", directory=directory)
    wait_for("the other job's file", lambda: there(cluster, "n1", f"/tmp/of-job-{other.number}"))
    with drained(cluster, ["n2"]):
        job = cluster.submit(IN_ITS_DIRECTORY.replace("COUNT", "60"), ON_REQUEST, directory=directory, held=True)
        job.wait_output("^5 ")
    seq = job.checkpoint()
    move(job, "n1")
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    other.cancel()
    assert not events(job)
    assert job.output().splitlines() == [f"{n} unopened /nowhere data empty link " for n in range(1, 61)]
    assert not there(cluster, "n2", f"/tmp/of-job-{other.number}")


READS = """import mmap, os, time
with open(f"/tmp/large-{os.environ['SLURM_JOB_ID']}", "w+b") as file:
    file.truncate(3 << 20)
with open(file.name, "rb") as file:
    content = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.05)
"""


def test_what_another_node_will_miss_is_told_once(cluster: Cluster, directory: Path) -> None:
    """And that checkpoint is refused there, with its name."""
    (directory / "reads_large.py").write_text(READS)
    with settings(cluster, '[files]\nmax_read = "1M"'):
        job = cluster.submit("exec python3 reads_large.py", ON_REQUEST, directory=directory)
        job.wait_output("^ready$")
        name = f"/tmp/large-{job.number}"
        job.checkpoint()
        job.wait_output("^slurmckpt: ")
        job.checkpoint()
        told = [line for line in job.output().splitlines() if line.startswith("slurmckpt: ")]
        assert len(told) == 1 and told[0].startswith(
            f"slurmckpt: a restore on another node will need {name} (3.1 MB), which the job reads"
        )
        assert [told[0].removeprefix("slurmckpt: ")] == events(job)
        move(job, job.node())
        line = job.wait_output("^slurmckpt: cold start: .*")[0]
    assert name in line
    job.cancel()
