"""Files that jobs write: as their programs believe them to be, on whichever node they go on.

In each test the job goes on writing after the checkpoint, so that the files are not those of the boundary when it is
restored.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Job, events, finish, move, restored_from, settings, wait_for

ON_REQUEST = "--checkpoint-interval=infinite"


# How far each part counts: on a slow machine a good part of it passes until a checkpoint is taken, and a job has moved.
COUNT = 250
# Where they wait for finish().
HELD_AT = COUNT * 3 // 4 - 1


def captured_moved_and_ended(job: Job, kinds: list[str]) -> str:
    """Checkpoint when every part has begun, move when it has gone on for a while; the output in the end."""
    for kind in kinds:
        job.wait_output(f"^{kind} 10$")
    seq = job.checkpoint()
    for kind in kinds:
        reached = max(int(number) for number in re.findall(rf"^{kind} (\d+)$", job.output(), re.MULTILINE))
        job.wait_output(f"^{kind} {min(reached + 15, HELD_AT)}$")
    move(job, job.node())
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    return job.output()


def assert_exact(output: str, kinds: list[str]) -> None:
    """Every part has printed each of its numbers once, and found its files as it believed them to be."""
    for kind in kinds:
        wanted = [f"{kind} {number}" for number in range(COUNT)] + [f"{kind} exact"]
        assert [line for line in output.splitlines() if line.startswith(f"{kind} ")] == wanted


def test_sqlite_databases_have_exactly_the_rows_that_were_written(cluster: Cluster, directory: Path) -> None:
    """Whether journal or write-ahead log are open, exist, or were removed since the boundary."""
    kinds = [f"{mode} {pauses}" for mode in ("wal", "delete", "persist") for pauses in ("inside", "outside")]
    script = "".join(f"python3 rows.py {kind.replace(' ', '-')}.db {kind} {COUNT} 0.03 &\n" for kind in kinds) + "wait"
    job = cluster.submit(script, ON_REQUEST, directory=directory, held=True)
    assert_exact(captured_moved_and_ended(job, kinds), kinds)


def test_files_that_are_changed_in_place(cluster: Cluster, directory: Path) -> None:
    """Each new content depends on the old one: written twice it would be another. By pwrite(2), memory maps, and HDF5."""
    kinds = ["file", "mapped", "hdf"]
    script = "".join(f"python3 inplace.py {kind} {kind}.data {COUNT} 0.03 &\n" for kind in kinds) + "wait"
    job = cluster.submit(script, ON_REQUEST, directory=directory, held=True)
    assert_exact(captured_moved_and_ended(job, kinds), kinds)


def test_a_database_is_exact_after_a_crash_in_place(cluster: Cluster, directory: Path) -> None:
    """Its file is still there, with what was written since; so are those who did not die, until then."""
    job = cluster.submit(
        f"python3 rows.py run.db delete outside {COUNT} 0.03", ON_REQUEST, directory=directory, held=True
    )
    job.wait_output("^delete outside 10$")
    seq = job.checkpoint()
    reached = len(job.output().splitlines())
    job.wait_output(f"^delete outside {min(reached + 15, HELD_AT)}$")
    cluster.run("pkill", "-SEGV", "-f", "rows.py run.db", user="root", node=job.node())
    wait_for("the restore in place", lambda: any(f"in place from #{seq}" in text for text in events(job)))
    assert finish(job) == "COMPLETED", job.output()
    assert_exact(job.output(), ["delete outside"])


def test_what_lies_on_the_node_itself_comes_along(cluster: Cluster, directory: Path) -> None:
    """The job's TMPDIR with everything in it; and what is open elsewhere in /tmp, or was deleted there."""
    script = """
export TMPDIR=/tmp/of-job-$SLURM_JOB_ID
mkdir -p $TMPDIR/sub && echo kept >$TMPDIR/sub/closed && ln -s sub/closed $TMPDIR/link
exec 3>/tmp/deleted-$SLURM_JOB_ID && echo one >&3 && rm /tmp/deleted-$SLURM_JOB_ID
python3 rows.py $TMPDIR/run.db wal outside COUNT 0.03 &
python3 inplace.py file /tmp/open-$SLURM_JOB_ID COUNT 0.03
wait
echo two >&3; python3 -c 'import os; print(open("/proc/self/fd/3").read().split())'
cat $TMPDIR/link; ls $TMPDIR
"""
    with settings(cluster, '[files]\ncarry = ["$TMPDIR"]'):
        job = cluster.submit(script.replace("COUNT", str(COUNT)), ON_REQUEST, directory=directory, held=True)
        kinds = ["wal outside", "file"]
        output = captured_moved_and_ended(job, kinds)
    assert_exact(output, kinds)
    assert output.splitlines()[-7:] == ["['one', 'two']", "kept", "link", "run.db", "run.db-shm", "run.db-wal", "sub"]


REPLACED = """import os, sys, time
first = open("first.log", "w")
while not os.path.exists("second please"): time.sleep(0.05)
second = open("second.log", "a")
second.write("x" * (17 << 20))
second.flush()
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.05)
print("end", flush=True)
"""


def test_a_file_that_was_replaced_is_refused_and_the_checkpoint_before_is_used(
    cluster: Cluster, directory: Path
) -> None:
    """Cutting what lies there now would damage another file, and bring nothing back."""
    (directory / "replaced.py").write_text(REPLACED)
    job = cluster.submit("exec python3 replaced.py", ON_REQUEST, directory=directory)
    wait_for("the first file", lambda: (directory / "first.log").exists())
    first = job.checkpoint()
    (directory / "second please").touch()
    job.wait_output("^ready$")
    second = job.checkpoint()
    log = directory / "second.log"
    log.rename(directory / "second.log.1")
    log.write_text("another file, and longer than the first one was\\n" * 500000)
    size = log.stat().st_size
    os.chown(log, 1000, 1000)
    (directory / "second please").unlink()
    move(job, job.node())
    assert restored_from(job) == first
    assert job.status()["attempts"][-1]["refused"] == [
        f"#{second}: /home/alice/{directory.name}/second.log has been replaced by another file of that name since the"
        " checkpoint"
    ]
    assert log.stat().st_size == size
    job.cancel()


def test_a_file_that_is_too_large_to_be_saved_is_refused_once(cluster: Cluster, directory: Path) -> None:
    program = "import os, time\nf = open('large', 'w+b'); f.truncate(3 << 20); print('ready', flush=True)\n"
    (directory / "large.py").write_text(program + "while not os.path.exists('go'): time.sleep(0.05)\n")
    with settings(cluster, '[files]\nmax_save = "1M"'):
        job = cluster.submit("exec python3 large.py", ON_REQUEST, directory=directory)
        job.wait_output("^ready$")
        done = [cluster.run("slurmckpt", "checkpoint", job.name, check=False) for _ in range(2)]
    reason = (
        rf"process \d+ \(python3\) writes /home/alice/{directory.name}/large in place, and no more than 1.0 MB of such files"
        " is saved: raise files.max_save, or give it another policy in files.rules"
    )
    assert all(re.search(reason, each.stderr) and each.returncode == 1 for each in done), done
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    assert len(re.findall(reason, job.output())) == 1, job.output()


FOLLOWED = """
exec 4<>kept.log
(for i in $(seq 1 COUNT); do while [ $i = 200 -a -e hold ]; do sleep 0.1; done; echo line $i; echo line $i >>kept.log; sleep 0.05; done; echo the end) >>followed.log &
tail -n +1 -f followed.log | sed -u '/the end/q'
pkill tail
wait
"""


def test_tail_follows_a_log_that_grows(cluster: Cluster, directory: Path) -> None:
    """It was told of the file by inotify, and holds a place in it. Another file is left alone, as the site wants it."""
    (directory / "followed.log").touch()
    os.chown(directory / "followed.log", 1000, 1000)
    with settings(cluster, '[files]\nrules = [{ path = "~/**/kept.log", policy = "keep" }]'):
        job = cluster.submit(FOLLOWED.replace("COUNT", str(COUNT)), ON_REQUEST, directory=directory, held=True)
        output = captured_moved_and_ended(job, ["line"])
    wanted = [f"line {number + 1}" for number in range(COUNT)] + ["the end"]
    assert [line for line in output.splitlines() if line.startswith(("line", "the"))] == wanted
    assert (directory / "followed.log").read_text().splitlines() == wanted
    kept = (directory / "kept.log").read_text().splitlines()
    assert set(kept) == set(wanted[:-1])
    # What was written between the checkpoint and the move is there twice.
    assert len(kept) > COUNT


def test_twenty_thousand_descriptors(cluster: Cluster, directory: Path) -> None:
    """Of all kinds; a fifth of them written in place, with a content of its own each. CRIU needs a few for itself below the limit, 20000."""
    job = cluster.submit("exec python3 many.py 19900", ON_REQUEST, directory=directory)
    job.wait_output("^ready$")
    seq = job.checkpoint()
    (directory / "spoil").touch()
    job.wait_output("^spoilt$")
    (directory / "spoil").unlink()
    move(job, job.node())
    assert restored_from(job) == seq
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    assert job.output().splitlines()[-1] == "19900 exact"


@pytest.mark.long
def test_a_program_of_many_gigabytes(cluster: Cluster, directory: Path) -> None:
    """Eight, all different; a node of the sandbox has 9.6."""
    available = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    if available is None or int(available[1]) < 18 << 20:
        pytest.skip("needs 18 GB of free memory")
    job = cluster.submit("exec python3 large.py 8 40", ON_REQUEST, "--mem=9500", directory=directory)
    job.wait_output("^round 20$", 180)
    seq = job.checkpoint()
    move(job, job.node())
    wait_for("the restore", lambda: len(job.status()["attempts"]) == 2 and job.status()["attempts"][1]["steps"], 180)
    assert restored_from(job) == seq
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    assert job.output().splitlines() == ["filled", *(f"round {turn}" for turn in range(40)), "exact"]


ODD_NAMES = [b"gone (deleted)", b"a\nb", b"a\\012b (deleted)", b"\xff\xfe", b"tab\t \\ \"'", b"n" * 255]
ODD_USES = {
    "written": b"before\nafter\n",
    "read": b"before\n",
    "shared": b"before\n",
    "private": b"before\n",
    "deleted": b"before\n",
}


def test_files_of_odd_names(cluster: Cluster, directory: Path) -> None:
    """As the kernel shows those that are deleted, with newlines, no UTF-8, as long as can be; here and in /tmp."""
    job = cluster.submit("python3 oddnames.py", ON_REQUEST, directory=directory, held=True)
    job.wait_output("^ready$")
    seq = job.checkpoint()
    move(job, job.node())
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    expected = [f"{name!r} {use} {value!r}" for name in ODD_NAMES for _ in range(2) for use, value in ODD_USES.items()]
    expected += [f"{b'program (deleted)'!r} executed None", f"{b'work'!r} directory []"]
    assert job.output().splitlines() == ["ready", *expected]
