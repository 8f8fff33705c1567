"""What a process holds: restored exactly on the other node, or refused before any rank is stopped, and told once."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.harness import Cluster, chain, finish, move, restored_from, settings, wait_for

HELD = {
    "deleted-program": "None",
    "nameless-file": "b'nameless'",
    "path-only": "True",
    "namespace": "True",
    "own-proc-file": r"b'python3\n'",
    "proc-file-of-a-dead": "No such process",
    "pidfd-of-a-dead": "No such process",
    "pidfd": "15",
    "inotify": "True",
    "fanotify": "True",
    "aio": "0",
    # The keys of a node's kernel stay there.
    "key": "Required key not available",
    "above-the-limit": "True",
    "seccomp-filter": "77",
}


def test_kernel_objects_of_many_kinds(cluster: Cluster, directory: Path) -> None:
    """One program holds them all."""
    job = cluster.submit("python3 held.py", "--checkpoint-interval=infinite", directory=directory)
    job.wait_output("^ready$")
    seq = job.checkpoint()
    move(job, job.node())
    assert restored_from(job) == seq
    (directory / "go").touch()
    job.wait_output("^seccomp-filter .*\n")
    lines = [line for line in job.output().splitlines() if line != "ready"]
    assert dict(line.split(" ", 1) for line in lines) == HELD
    job.cancel()


def test_a_refused_job_runs_on_and_is_told_once(cluster: Cluster, directory: Path) -> None:
    """A step with PMI2 is connected with slurmstepd; the timer asks every second, a user as well."""
    job = cluster.submit(
        "srun --mpi=pmi2 python3 chain.py 120 0.1", "--checkpoint-interval=1s", directory=directory, held=True
    )
    line = job.wait_output("^slurmckpt: checkpoint skipped: .*")[0]
    assert "is connected by a unix socket to process " in line and "(slurmstepd) outside the pod" in line
    assert line.endswith("start the step with srun --mpi=none (this is the PMI of MPI), and MPI programs with mpirun")
    done = cluster.run("slurmckpt", "checkpoint", str(job.number), check=False)
    assert done.returncode != 0 and "srun --mpi=none" in done.stderr
    wait_for("three more refusals", lambda: (job.status().get("skipped") or {"times": 0})["times"] > 3)
    assert finish(job) == "COMPLETED"
    assert [one for one in job.output().splitlines() if one != line] == chain(120)
    assert job.output().count("checkpoint skipped") == 1
    shown = cluster.run("slurmckpt", "status", str(job.number)).stdout
    assert "checkpoints were skipped from " in shown
    # There, and once among the events.
    assert shown.count("srun --mpi=none") == 2 and shown.count("checkpoint skipped") == 1


RING = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print("ring", libc.syscall(425, 2, ctypes.create_string_buffer(120)) < 0 and os.strerror(ctypes.get_errno()), flush=True)
import time
while not os.path.exists("go"): time.sleep(0.05)
print("done", flush=True)
"""
NODE = """
const fs = require('fs');
let number = 0, busy = false;
const timer = setInterval(() => {
  if (busy) return;
  busy = true;
  // A file of its own for each: one that is closed at the checkpoint is read as it was changed since.
  const name = 'number.' + number;
  fs.writeFile(name, String(number), () => fs.readFile(name, 'utf8', (error, text) => {
    console.log('number', text);
    busy = false;
    if (++number == 150) clearInterval(timer);
  }));
}, 50);
"""


def test_io_uring_is_not_there_and_programs_fall_back(cluster: Cluster, directory: Path) -> None:
    """Node.js does its file operations by io_uring where it can (libuv); both go on after a move."""
    (directory / "ring.py").write_text(RING)
    (directory / "numbers.js").write_text(NODE)
    job = cluster.submit(
        "python3 ring.py & UV_USE_IO_URING=1 node numbers.js; wait",
        "--checkpoint-interval=infinite",
        directory=directory,
        held=True,
    )
    job.wait_output("^ring Function not implemented$")
    job.wait_output("^number 20$")
    seq = job.checkpoint()
    move(job, job.node())
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    lines = job.output().splitlines()
    assert [line for line in lines if line.startswith("number ")] == [f"number {n}" for n in range(150)]
    assert [line for line in lines if not line.startswith("number ")] == ["ring Function not implemented", "done"]


def test_io_uring_that_the_site_allows_is_refused(cluster: Cluster, directory: Path) -> None:
    """And the job that has it runs on."""
    (directory / "ring.py").write_text(RING)
    with settings(cluster, '[capture]\nio_uring = "allow"'):
        job = cluster.submit("python3 ring.py", "--checkpoint-interval=infinite", directory=directory)
        job.wait_output("^ring False$")
        done = cluster.run("slurmckpt", "checkpoint", str(job.number), check=False)
        assert "uses io_uring, which cannot be captured" in done.stderr and 'io_uring = "deny"' in done.stderr
        (directory / "go").touch()
        assert job.wait_end() == "COMPLETED", job.output()
    assert job.output().splitlines()[-1] == "done"


GHOST = """
import os, time
f = open("ghost", "w")
f.write("x" * 2_000_000)
f.flush()
os.unlink("ghost")
print("held", flush=True)
while not os.path.exists("let-go"): time.sleep(0.05)
f.close()
print("closed", flush=True)
while not os.path.exists("go"): time.sleep(0.05)
"""


def test_what_only_criu_finds_out_is_told_with_its_log(cluster: Cluster, directory: Path) -> None:
    """A deleted file above the limit: the dump is undone, the job runs on, and its next checkpoint is taken."""
    (directory / "ghost.py").write_text(GHOST)
    with settings(cluster, '[capture]\nghost_limit = "1M"'):
        job = cluster.submit("python3 ghost.py", "--checkpoint-interval=infinite", directory=directory)
        job.wait_output("^held$")
        done = cluster.run("slurmckpt", "checkpoint", str(job.number), check=False)
        found = re.search(
            r"process \d+ \(python3\) has the deleted file /home/alice/\S+/ghost of \d+ bytes open: .*\(CRIU's log: (.*)\)",
            done.stderr,
        )
        assert found, done.stderr
        log = cluster.run("cat", found[1]).stdout
        assert "Error" in log and "ghost" in log and "Dumping FAILED" in log
        assert job.status()["skipped"]["times"] == 1
        (directory / "let-go").touch()
        job.wait_output("^closed$")
        job.checkpoint()
        assert job.status()["skipped"] is None
        (directory / "go").touch()
        assert job.wait_end() == "COMPLETED", job.output()
