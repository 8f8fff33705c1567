"""TCP connections between the steps of a job, and between a step and the batch script: programs/crossing.py has them.

Whatever is lost, doubled or changed in one of them is seen by its other end.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.harness import Cluster, Job, drained, events, move, restored_from, wait_attempts, wait_for

# Between two steps by the name of the node, between a step and the script over loopback.
SCRIPT = """
srun --overlap -n1 python3 crossing.py server 2 &
srun --overlap -n1 python3 crossing.py client step node &
python3 crossing.py client script 127.0.0.1
wait
"""
ALL = {f"{name} {kind}" for name in ("step", "script") for kind in ("busy", "full", "half", "idle")}


def begin(cluster: Cluster, directory: Path, *options: str) -> Job:
    job = cluster.submit(SCRIPT, "--checkpoint-interval=infinite", "--time=5", *options, directory=directory)
    job.wait_output("^ready$")
    return job


def end(job: Job, directory: Path) -> None:
    """Let all connections come to their ends; each has got what the other has sent."""
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    found = re.findall(r"^(client|server) (\w+ \w+) (\d+) (\d+)$", job.output(), re.MULTILINE)
    clients = {what: (sent, received) for side, what, sent, received in found if side == "client"}
    servers = {what: (received, sent) for side, what, sent, received in found if side == "server"}
    assert clients == servers and clients.keys() == ALL, job.output()
    assert len(found) == 2 * len(ALL) and "WRONG" not in job.output(), job.output()


def test_they_go_on_elsewhere_again_and_again(cluster: Cluster, directory: Path) -> None:
    """Also in the job that goes on after a checkpoint, and in the second generation."""
    job = begin(cluster, directory)
    for generation in range(2):
        for _ in range(2):
            seq = job.checkpoint()
        move(job, job.node())
        wait_attempts(job, generation + 2)
        assert restored_from(job) == seq
    end(job, directory)
    assert not events(job)


def test_they_go_on_in_place_when_a_step_has_crashed(cluster: Cluster, directory: Path) -> None:
    """All pods go back, with both ends of each."""
    job = begin(cluster, directory)
    seq = job.checkpoint()
    cluster.root(job.node(), "pkill -KILL -f '^[^ ]*python3 crossing.py client step'")
    wait_for(
        "the restore in place", lambda: any(text.endswith(f"restored in place from #{seq}") for text in events(job))
    )
    end(job, directory)


REDIS = """
srun --overlap -n1 redis-server --port 7380 --bind 127.0.0.1 --save '' >/dev/null &
srun --overlap -n1 python3 -uc '
import os, socket, time
while True:
    try:
        redis = socket.create_connection(("127.0.0.1", 7380))
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
answers = redis.makefile("rb")
def ask(words):
    redis.sendall(words + b"\\r\\n")
    return answers.readline()
count = 0
while not os.path.exists("go"):
    count += 1
    answer = ask(b"INCR n")
    assert answer == b":%d\\r\\n" % count, (count, answer)
    if count == 100:
        print("ready")
    time.sleep(0.001)
print("counted", ask(b"INCR n") == b":%d\\r\\n" % (count + 1))
redis.sendall(b"SHUTDOWN NOSAVE\\r\\n")
'
wait
"""


def test_a_server_and_its_client_in_two_steps(cluster: Cluster, directory: Path) -> None:
    """Redis, and on the same node again: what is left of the connection there is in nobody's way."""
    job = cluster.submit(REDIS, "--checkpoint-interval=infinite", "--time=5", directory=directory)
    job.wait_output("^ready$")
    seq, node = job.checkpoint(), job.node()
    with drained(cluster, [one for one in ("n1", "n2") if one != node]):
        job.requeue()
        wait_attempts(job, 2)
        assert restored_from(job) == seq and job.node() == node
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    assert job.output() == "ready\ncounted True\n"
