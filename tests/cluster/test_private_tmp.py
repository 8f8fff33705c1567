"""Jobs with a /tmp of their own: Slurm's namespace/tmpfs, which was job_container/tmpfs before 25.11."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, chain, finish, move, restored_from, settings, wait_for

STOP = """
old=$(pidof slurmd slurmctld) && kill $old
while [ -n "$old" ] && [ -e /proc/$old ]; do sleep 0.1; done
"""
# Prints the CPUs on which a new mount namespace can be kept by a bind mount, as the plugin does it. Linux 6.18 refuses it with
# EINVAL when it takes the new namespace for older than the host's: it compares ids, of which each CPU has a supply of its own.
CPUS = """
mkdir -p /run/probe && mount --bind /run/probe /run/probe && mount --make-private /run/probe && touch /run/probe/ns
for cpu in $(seq 0 $(($(nproc) - 1))); do
    taskset -c $cpu unshare --mount=/run/probe/ns true 2>/dev/null && echo $cpu && umount /run/probe/ns
done
umount /run/probe
"""


@pytest.fixture
def private_tmp(cluster: Cluster) -> Iterator[None]:
    """Slurm gives each job a /tmp of its own."""
    if not all(cluster.root(node, CPUS).stdout for node in ("n1", "n2")):
        pytest.skip("this kernel takes the mount namespaces of jobs for older than those of the sandbox's nodes")
    new = cluster.root("n1", "ls /usr/lib/*/slurm*/namespace_tmpfs.so", check=False).returncode == 0
    setting = "NamespaceType=namespace/tmpfs" if new else "JobContainerType=job_container/tmpfs"
    configure(
        cluster,
        "cp /etc/slurm/slurm.conf /root/slurm.conf"
        f" && sed -i 's|^PrologFlags=.*|PrologFlags=Alloc,Contain\\n{setting}|' /etc/slurm/slurm.conf"
        " && echo BasePath=/var/private-tmp AutoBasePath=true >/etc/slurm/job_container.conf",
        True,
    )
    yield
    cluster.run("scancel", "--user", "alice", check=False)
    cluster.all_idle()
    configure(cluster, "cat /root/slurm.conf >/etc/slurm/slurm.conf; rm -f /etc/slurm/job_container.conf", False)


def configure(cluster: Cluster, change: str, private: bool) -> None:
    """Change Slurm's configuration while none of its daemons runs. private: whether jobs have a /tmp of their own then.

    A slurmd that is told to read it again starts anew beside itself, and the old one then unmounts what the new one
    has mounted for the private directories (seen with 26.05).
    """
    for node in ("n1", "n2", "ctl"):
        cluster.root(node, STOP)
    cluster.root("ctl", f"{change}; slurmctld")
    for node in ("n1", "n2"):
        cpus = cluster.root(node, CPUS).stdout.split() if private else []
        cluster.root(node, f"taskset -c {cpus[0]} slurmd" if cpus else "slurmd")
    wait_for("the nodes to answer", lambda: _idle(cluster) == 2)


def _idle(cluster: Cluster) -> int:
    done = cluster.run("sinfo", "-h", "-N", "-t", "idle", "-r", check=False)
    return done.stdout.count("\n") if done.returncode == 0 else 0


@pytest.mark.usefixtures("private_tmp")
def test_a_job_with_files_in_its_own_tmp(cluster: Cluster, directory: Path) -> None:
    """What is in /tmp goes with the job's node; what was deleted but open comes along. /tmp is a private one again."""
    program = """import os, sys, time
f = open("/tmp/gone", "w+"); f.write("kept"); f.flush(); os.unlink("/tmp/gone")
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.1)
f.seek(0); print(f.read(), os.listdir("/tmp"), flush=True)
open("/tmp/mine", "w").write("x"); print(os.path.exists("/tmp/mine"), flush=True)
"""
    (directory / "program.py").write_text(program)
    job = cluster.submit("exec python3 program.py", "--checkpoint-interval=infinite", directory=directory)
    job.wait_output("^ready$")
    seq = job.checkpoint()
    before = job.node()
    move(job, before)
    assert restored_from(job) == seq
    after = job.node()
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    assert job.output() == "ready\nkept []\nTrue\n"
    for node in (before, after):
        cluster.root(node, "test ! -e /tmp/mine")


@pytest.mark.usefixtures("private_tmp")
def test_a_file_of_the_same_name_in_the_nodes_tmp_is_not_touched(cluster: Cluster, directory: Path) -> None:
    """A rank has /tmp/own open for writing: it comes back in the job's own /tmp, beside that of another program there."""
    script = "python3 chain.py 100 0.1 /tmp/own; wc -l </tmp/own"
    job = cluster.submit(script, "--checkpoint-interval=infinite", directory=directory, held=True)
    job.wait_output("^20 ")
    seq = job.checkpoint()
    before = job.node()
    (after,) = {"n1", "n2"} - {before}
    cluster.run("sh", "-c", "yes | head -c 100000 >/tmp/own", node=after)
    try:
        move(job, before)
        assert restored_from(job) == seq
        assert finish(job) == "COMPLETED", job.output()
        assert cluster.root(after, "stat -c %s /tmp/own").stdout == "100000\n"
    finally:
        cluster.root(after, "rm -f /tmp/own")
    assert job.output().splitlines() == [*chain(100), "100"]


CARRIED = """import os, socket, time
def top():
    status = os.stat("/tmp")
    return status.st_mode, status.st_uid, status.st_gid
before = top()
os.makedirs("/tmp/sub/deep", 0o750)
open("/tmp/sub/closed", "w").write("closed")
os.symlink("sub/closed", "/tmp/link")
log = open("/tmp/sub/log", "a"); log.write("one\\n"); log.flush()
gone = open("/tmp/gone", "w+"); gone.write("kept"); gone.flush(); os.unlink("/tmp/gone")
listener = socket.socket(socket.AF_UNIX); listener.bind("/tmp/sub/listener"); listener.listen()
home = os.getcwd()
os.chdir("/tmp/sub/deep")
print("ready", flush=True)
while not os.path.exists(home + "/go"): time.sleep(0.1)
log.write("two\\n"); log.flush(); gone.seek(0)
client = socket.socket(socket.AF_UNIX); client.connect("/tmp/sub/listener")
print(open("/tmp/link").read(), open("../log").read().split(), gone.read(), oct(os.stat(".").st_mode))
print(sorted(os.listdir("/tmp")), sorted(os.listdir("/tmp/sub")), top() == before)
"""


@pytest.mark.usefixtures("private_tmp")
def test_a_tmp_of_the_jobs_own_that_is_carried(cluster: Cluster, directory: Path) -> None:
    """All that is in it comes along, open or not; the nodes' own /tmp are not touched."""
    (directory / "carried.py").write_text(CARRIED)
    for node in ("n1", "n2"):
        cluster.run("sh", "-c", "mkdir /tmp/sub && echo other >/tmp/sub/closed", node=node)
    try:
        with settings(cluster, '[files]\ncarry = ["/tmp"]'):
            job = cluster.submit("exec python3 carried.py", "--checkpoint-interval=infinite", directory=directory)
            job.wait_output("^ready$")
            seq = job.checkpoint()
            move(job, job.node())
            assert restored_from(job) == seq
            (directory / "go").touch()
            assert job.wait_end() == "COMPLETED", job.output()
        assert job.output().splitlines() == [
            "ready",
            "closed ['one', 'two'] kept 0o40750",
            "['link', 'sub'] ['closed', 'deep', 'listener', 'log'] True",
        ]
        for node in ("n1", "n2"):
            assert cluster.root(node, "ls -A /tmp/sub; cat /tmp/sub/closed").stdout == "closed\nother\n"
    finally:
        for node in ("n1", "n2"):
            cluster.root(node, "rm -rf /tmp/sub")
