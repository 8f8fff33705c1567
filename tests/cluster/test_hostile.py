"""A user who prepares his files, links and programs so that root does something for him."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.harness import GATE, Cluster, finish, move, restored_from


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_link_in_the_place_of_a_directory_opens_nothing(cluster: Cluster, directory: Path, kind: str) -> None:
    """CRIU opens by path, as root, what the process had: here, what root alone may read."""
    (directory / "reader.py").write_text(
        """import os, sys, time
if sys.argv[1] == "file":
    f = os.open("d/shadow", os.O_RDONLY)
else:
    os.chdir("d/private")
print("ready", flush=True)
while not os.path.exists(sys.argv[2] + "/go"): time.sleep(0.1)
print("got", os.pread(f, 20, 0) if sys.argv[1] == "file" else os.getcwd(), flush=True)
"""
    )
    secrets = directory / "secrets"
    (directory / "d").mkdir()
    (directory / "d/private").mkdir()
    (directory / "d/shadow").write_text("x" * 30)
    # What only root may reach: a file, and a directory inside a closed one.
    (secrets / "private").mkdir(parents=True)
    (secrets / "shadow").write_text("a secret".ljust(30))
    secrets.chmod(0o700)
    (secrets / "shadow").chmod(0o644)
    cluster.root("n1", f"chown -R alice:alice /home/alice/{directory.name}/d")
    where = f"/home/alice/{directory.name}"
    job = cluster.submit(f"python3 reader.py {kind} {where}", "--checkpoint-interval=infinite", directory=directory)
    job.wait_output("^ready$")
    job.checkpoint()
    (directory / "d").rename(directory / "d.real")
    (directory / "d").symlink_to(f"{where}/secrets")
    move(job, job.node())
    line = job.wait_output("^slurmckpt: cold start: .*")[0]
    assert "which its user may not open like that" in line
    (directory / "go").touch()
    job.wait_end()
    assert "secret" not in job.output().replace(line, "")


def test_a_set_user_id_program_is_not_put_into_the_users_store(cluster: Cluster, directory: Path) -> None:
    """Its memory holds what the user may not see."""
    program = """import os, subprocess, time
r, w = os.pipe()
os.set_blocking(w, False)
try:
    while True: os.write(w, b"x" * 4096)
except BlockingIOError: pass
os.set_blocking(w, True)
p = subprocess.Popen(["chage", "-l", "alice"], stdout=w)
print("blocked", flush=True)
time.sleep(1000)
p.kill()
"""
    (directory / "setid.py").write_text(program)
    job = cluster.submit("python3 setid.py", "--checkpoint-interval=infinite", directory=directory)
    job.wait_output("^blocked$")
    done = cluster.run("slurmckpt", "checkpoint", str(job.number), check=False)
    assert "has rights or secrets that its user may not see" in done.stderr, done.stdout + done.stderr
    assert not list(cluster.home.parent.parent.glob(f"store/*/alice/{job.number}/[0-9]*"))
    job.cancel()


def test_shared_memory_and_semaphores_come_back(cluster: Cluster, directory: Path) -> None:
    """A pool of processes that counts in a shared segment."""
    (directory / "pool.py").write_text(
        """import multiprocessing as mp, time
from multiprocessing import shared_memory

def work(arguments):
    name, lock, number = arguments
    segment = shared_memory.SharedMemory(name)
    time.sleep(0.05)
    with lock:
        value = int.from_bytes(segment.buf[:8], "little") + number
        segment.buf[:8] = value.to_bytes(8, "little")
    segment.close()
    return number

def run(queue, name, lock):
    for number in iter(queue.get, None):
        work((name, lock, number))

if __name__ == "__main__":
    # Later Pythons would start a server for them, with a socket in /tmp, which is the node's own.
    mp.set_start_method("fork")
    segment = shared_memory.SharedMemory(create=True, size=4096)
    lock, queue = mp.Lock(), mp.Queue()
    ranks = [mp.Process(target=run, args=(queue, segment.name, lock)) for _ in range(3)]
    for rank in ranks: rank.start()
    for number in range(300):
        queue.put(number)
        if number == 100: print("ready", flush=True)
        time.sleep(0.02)
    for _ in ranks: queue.put(None)
    for rank in ranks: rank.join()
    print("sum", int.from_bytes(segment.buf[:8], "little"), flush=True)
    segment.close(); segment.unlink()
"""
    )
    job = cluster.submit(f"python3 pool.py\n{GATE}", "--checkpoint-interval=infinite", directory=directory)
    job.wait_output("^ready$")
    seq = job.checkpoint()
    move(job, job.node())
    assert restored_from(job) == seq
    assert finish(job) == "COMPLETED", job.output()
    assert job.output() == f"ready\nsum {sum(range(300))}\n"


DELETED = """
home=$PWD; mkdir -p x/victim; cd x/victim; rmdir ../victim
echo ready; until [ -e $home/go ]; do sleep 0.1; done; echo done
"""


def test_a_link_on_the_way_to_a_deleted_directory_gives_nothing_away(cluster: Cluster, directory: Path) -> None:
    """CRIU makes the directory anew, gives it to its user and removes it: by its path, on which the user has put a link."""
    place = f"/var/tmp/roots-{directory.name}"
    for node in ("n1", "n2"):
        cluster.root(node, f"mkdir -p {place}/victim && touch {place}/victim/file")
    job = cluster.submit(DELETED, "--checkpoint-interval=infinite", directory=directory)
    job.wait_output("^ready$")
    job.checkpoint()
    cluster.run("sh", "-c", f"cd {directory.name} && mv x y && ln -s {place} x")
    move(job, job.node())
    job.wait_output("^slurmckpt: cold start: ")
    assert cluster.root(job.node(), f"stat -c '%u %a' {place}/victim").stdout == "0 755\n"
    job.cancel()
    for node in ("n1", "n2"):
        cluster.root(node, f"rm -r {place}")
