"""Sockets of every kind and in every state come back, each with what it held: programs/sockets.py has the cases."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.harness import Cluster, events, move, restored_from


def test_sockets_inside_the_pod_are_exact(cluster: Cluster, directory: Path) -> None:
    """Both ends of each are in the pod."""
    lines = through_a_move(cluster, directory, "sockets.py")
    wrong = [line for line in lines[1:-1] if not line.endswith(" ok")]
    assert not wrong, "\n".join(wrong)
    assert (lines[0], lines[-1]) == ("ready", "end") and sum(line.startswith("tcp_") for line in lines) > 10


def test_tcp_connections_tell_what_they_told(cluster: Cluster, directory: Path) -> None:
    """In each state that a program can hold one in: programs/tcpstates.py has them."""
    lines = through_a_move(cluster, directory, "tcpstates.py")
    wrong = [line for line in lines[1:-1] if not line.endswith(" ok")]
    assert not wrong, "\n".join(wrong)
    assert (lines[0], lines[-1], len(lines)) == ("ready", "end", 17)


# A message that CRIU would lose, until the file `go` is there; then it is read, and the program waits for its end.
UNREAD = """
import os, socket, time
one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
for message in (b"first", b"", b"last"): one.send(message)
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.01)
print([other.recv(9) for _ in range(3)], flush=True)
while not os.path.exists("stop"): time.sleep(0.01)
"""


def test_a_message_that_would_be_lost_is_waited_for(cluster: Cluster, directory: Path) -> None:
    """The job runs on meanwhile, and is captured when its program has read it."""
    (directory / "unread.py").write_text(UNREAD)
    job = cluster.submit("exec python3 unread.py", "--checkpoint-interval=infinite", "--time=5", directory=directory)
    job.wait_output("^ready$")
    done = cluster.run("slurmckpt", "checkpoint", job.name, check=False)
    assert (
        "has not read a message of no bytes at its unix socket, which cannot be captured" in done.stdout + done.stderr
    )
    (directory / "go").touch()
    job.wait_output("last")
    assert job.checkpoint() == 1
    (directory / "stop").touch()
    assert job.wait_end() == "COMPLETED"
    assert job.output().splitlines()[-1] == "[b'first', b'', b'last']"


def test_options_of_sockets_are_kept(cluster: Cluster, directory: Path) -> None:
    """Whatever can be set; programs/options.py names what differs."""
    lines = through_a_move(cluster, directory, "options.py")
    assert lines[0] == "ready" and len(lines) == 2, "\n".join(lines)
    assert int(lines[1].removeprefix("held ")) > 500


def test_multicast_groups_are_joined_again(cluster: Cluster, directory: Path) -> None:
    """Also from one source only, and but for one; and each sends on the interface that it had chosen."""
    lines = through_a_move(cluster, directory, "groups.py")
    told = ["b'to four' b'to four' b'to six'", "nothing"]
    assert lines == [*told, "ready", *told]


def through_a_move(cluster: Cluster, directory: Path, program: str) -> list[str]:
    """What a program prints that is moved at `ready` and then told to go on."""
    job = cluster.submit(f"exec python3 {program}", "--checkpoint-interval=infinite", "--time=5", directory=directory)
    job.wait_output("^ready$")
    job.checkpoint()
    move(job, job.node())
    restored_from(job)
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    assert not events(job)
    return job.output().splitlines()
