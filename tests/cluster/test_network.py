"""What becomes of a restored program's connections, and how it makes new ones, on a node with another address."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.harness import (
    TREE,
    Cluster,
    Job,
    drained,
    events,
    move,
    restored_from,
    settings,
    wait_attempts,
    wait_for,
)

# Answers each line with its number in the connection and the peer's address; three words mean something. The port after
# its own has a full queue until somebody says drain. Runs on a host that is no node of the job.
SERVER = r"""
import socket, sys, threading
def serve(one, peer):
    with one, one.makefile("rw") as lines:
        for number, line in enumerate(lines):
            if line == "bye\n": break
            if line == "hold\n": threading.Event().wait()
            if line == "drain\n":
                for _ in range(2): full.accept()
            lines.write(f"{number} {line.strip()} {peer[0]}\n"); lines.flush()
port = int(sys.argv[1])
listener = socket.create_server(("", port))
full = socket.create_server(("", port + 1), backlog=0)
filling = socket.create_connection(("localhost", port + 1))
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=listener.accept(), daemon=True).start()
"""

# One connection to the server outside, one to itself over the node's own address, and data on its way in it both ways.
CLIENT = r"""
import os, socket, struct, sys, threading, time
SERVER = ("ctl", int(sys.argv[1]))

def say(*words): print(*words, flush=True)

def outside():
    with socket.create_connection(SERVER) as one, one.makefile("rw") as lines:
        lines.write("hello\n"); lines.flush()
        say("outside", lines.readline().strip())
        began = time.time()
        try:
            say("outside got", repr(lines.readline()))
        except OSError as error:
            say("outside ended", type(error).__name__, f"{time.time():.3f}")

def inside():
    listener = socket.create_server((socket.gethostname(), 0))
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    say("inside", *other.getsockname())
    def echo():
        while True:
            other.sendall(other.recv(8))
    threading.Thread(target=echo, daemon=True).start()
    # Always some numbers on their way.
    for number in range(64): one.sendall(struct.pack("=Q", number))
    number, got = 64, 0
    stream = one.makefile("rb")
    while not os.path.exists("stop"):
        value, = struct.unpack("=Q", stream.read(8))
        if value != got: say("inside is wrong:", value, "instead of", got)
        got += 1
        one.sendall(struct.pack("=Q", number)); number += 1
        if got % 2000 == 0: say("inside", got)
    say("inside stops", "exactly" if got > 64 else "early")

threading.Thread(target=outside, daemon=True).start()
threading.Thread(target=inside, daemon=True).start()
while not os.path.exists("go"): time.sleep(0.05)
with socket.create_connection(SERVER, 60) as one, one.makefile("rw") as lines:
    lines.write("again\n"); lines.flush()
    say("new", lines.readline().strip())
while not os.path.exists("stop"): time.sleep(0.05)
time.sleep(0.5)
say("end")
"""


# One connection in each state that is neither ESTABLISHED nor CLOSED, outside (and inside, where that is possible).
STATES = r"""
import os, select, socket, sys, time
host, port = "ctl", int(sys.argv[1])

def say(*words): print(*words, flush=True)
def connected(*lines):
    one = socket.create_connection((host, port))
    one.sendall("".join(f"{line}\n" for line in lines).encode())
    return one
def state(one): return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
def until(one, wanted):
    while state(one) != wanted: time.sleep(0.01)
def rest(one):
    data = b""
    one.settimeout(60)
    try:
        while piece := one.recv(100): data += piece
        return data, "end"
    except OSError as error:
        return data, type(error).__name__

close_wait = connected("data", "bye")
until(close_wait, 8)
fin_wait = connected("hold")
fin_wait.shutdown(socket.SHUT_WR)
until(fin_wait, 5)
unread = connected("unread")
while not select.select([unread], [], [], 1)[0]: pass
syn_sent = socket.socket()
syn_sent.setblocking(False)
syn_sent.connect_ex((host, port + 1))
listener = socket.create_server((socket.gethostname(), 0))
ours = socket.create_connection(listener.getsockname())
theirs, _ = listener.accept()
ours.sendall(b"last words")
ours.shutdown(socket.SHUT_WR)
until(theirs, 8); until(ours, 5)
say("states", state(close_wait), state(fin_wait), state(unread), state(syn_sent), state(theirs), state(ours))
while not os.path.exists("go"): time.sleep(0.05)
say("close_wait", *rest(close_wait))
say("fin_wait", *rest(fin_wait))
say("unread", *rest(unread))
say("theirs", *rest(theirs))
theirs.sendall(b"answer"); theirs.close()
say("ours", *rest(ours))
connected("drain").recv(100)
say("syn_sent", len(select.select([], [syn_sent], [], 60)[1]), syn_sent.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
say("end")
"""

# Processes by their names in /proc, so that this very script is not among them.
LEFTOVERS = r"""
ls /run/slurmckpt /var/lib/slurmckpt 2>/dev/null | grep -E '^[0-9]+$'
for p in /proc/[0-9]*; do
    case $(cat $p/comm 2>/dev/null) in pasta*|unshare|nsenter|criu|pod-init|leader) echo "$p $(cat $p/comm)" ;; esac
    for n in user pid net; do
        [ ! -e $p/ns/$n ] || [ "$(readlink $p/ns/$n)" = "$(readlink /proc/1/ns/$n)" ] || echo "$p in another $n namespace"
    done
done
"""


def assert_nothing_left(cluster: Cluster, *nodes: str) -> None:
    """No process, namespace or directory of a job is on these nodes, now or in a moment."""
    for node in nodes:
        left = [""]

        def clean(node: str = node, left: list[str] = left) -> bool:
            left[0] = cluster.root(node, LEFTOVERS, check=False).stdout
            return left[0] == ""

        try:
            wait_for("clean", clean)
        except AssertionError:
            raise AssertionError(f"left on {node}:\n{left[0]}") from None


@contextmanager
def server(port: int, host: str = "ctl") -> Iterator[None]:
    """The server, as a rule on the controller's host: no node of the job."""
    command = [str(TREE / "sandbox/cluster"), "run", "--node", host, "--", "python3", "-c", SERVER, str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield
    finally:
        process.terminate()
        process.wait()


def submit(cluster: Cluster, directory: Path, program: str, *words: object) -> Job:
    """A job that runs this Python program in its batch script, with checkpoints on request only."""
    (directory / "program.py").write_text(program)
    command = " ".join(["exec python3 program.py", *map(str, words)])
    return cluster.submit(command, "--checkpoint-interval=infinite", "--time=5", directory=directory)


def test_connections_outside_are_reset_those_inside_go_on(cluster: Cluster, directory: Path) -> None:
    """And the restored program reaches the outside again, by name."""
    with server(7001):
        job = submit(cluster, directory, CLIENT, 7001)
        job.wait_output("^outside 0 hello ")
        job.wait_output("^inside 2000$")
        job.checkpoint()
        before = job.node()
        address = job.wait_output("^inside ([0-9.]+) [0-9]+$")[1]
        move(job, before)
        restored_from(job)
        job.wait_output("^outside ended Connection(Reset|Aborted)Error ")
        done = int(re.findall("^inside ([0-9]+)$", job.output(), re.MULTILINE)[-1])
        job.wait_output(f"^inside {done + 4000}$")
        (directory / "go").touch()
        peer = job.wait_output("^new 0 again ([0-9.]+)$")[1]
        assert peer != address, "it goes out with the address of its node"
        after = job.node()
        (directory / "stop").touch()
        assert job.wait_end() == "COMPLETED", job.output()
    assert "inside stops exactly" in job.output() and "wrong" not in job.output()
    assert not events(job)
    assert_nothing_left(cluster, before, after)


@pytest.mark.parametrize("where", ["elsewhere", "same node"])
def test_connections_in_every_state(cluster: Cluster, directory: Path, where: str) -> None:
    """None makes the dump or the restore fail. What had been received is not lost, and an end that had come is an end."""
    with server(7011):
        job = submit(cluster, directory, STATES, 7011)
        job.wait_output("^states 8 5 1 2 8 5$")
        job.checkpoint()
        before = job.node()
        address = cluster.root(before, "hostname -i").stdout.split()[0]
        if where == "elsewhere":
            move(job, before)
        else:
            others = {"n1", "n2"} - {before}
            with drained(cluster, sorted(others)):
                job.requeue()
                wait_for("the job runs again", lambda: job.info()["restart_cnt"] == 1 and job.state() == "RUNNING")
        restored_from(job)
        (directory / "go").touch()
        assert job.wait_end() == "COMPLETED", job.output()
    assert (job.node() == before) == (where == "same node")
    lines = dict(line.split(" ", 1) for line in job.output().splitlines()[1:-1])
    assert lines == {
        "close_wait": f"b'0 data {address}\\n' end",
        "fin_wait": "b'' ConnectionAbortedError",
        "unread": f"b'0 unread {address}\\n' ConnectionAbortedError",
        "theirs": "b'last words' end",
        "ours": "b'answer' end",
        "syn_sent": "1 0",
    }
    assert not events(job)
    assert_nothing_left(cluster, "n1", "n2")


def test_a_batch_script_uses_slurm_after_its_restore(cluster: Cluster, directory: Path) -> None:
    """squeue reaches the controller; srun the node's own slurmd, and slurmstepd reaches srun."""
    (directory / "bound.py").write_text(
        "import socket, time\ns = socket.create_server((socket.gethostname(), 0))\n"
        "print('bound', flush=True)\ntime.sleep(300)\n"
    )
    script = """
python3 bound.py & bound=$!
until [ -e go ]; do sleep 0.1; done
squeue -h -j $SLURM_JOB_ID -o %T
ip route show default | grep -o "rto_min lock 5ms congctl reno"
srun sh -c 'echo step on $SLURMD_NODENAME; read line; echo $line' <<<typed
kill $bound
"""
    job = cluster.submit(script, "--checkpoint-interval=infinite", "--time=5", directory=directory)
    job.wait_output("^bound$")
    job.checkpoint()
    before = job.node()
    move(job, before)
    restored_from(job)
    after = job.node()
    (directory / "go").touch()
    assert job.wait_end() == "COMPLETED", job.output()
    assert job.output().splitlines() == [
        *("bound", "RUNNING"),
        # What is lost on the way to pasta is missed soon (docs/performance.md).
        "rto_min lock 5ms congctl reno",
        *(f"step on {after}", "typed"),
    ]
    assert_nothing_left(cluster, before, after)


def test_a_port_is_kept_and_the_old_name_leads_to_it(cluster: Cluster, directory: Path) -> None:
    """It is taken on the new node, and nobody had connected to it at the checkpoint."""
    program = r"""
import os, socket, time
listener = socket.create_server(("", 7021))
name = socket.gethostname()
print("listens", flush=True)
while not os.path.exists("go"): time.sleep(0.05)
one = socket.create_connection((name, 7021), 60)
other, _ = listener.accept()
other.sendall(b"rank 1")
print(one.recv(10).decode(), flush=True)
"""
    job = submit(cluster, directory, program)
    job.wait_output("^listens$")
    job.checkpoint()
    before = job.node()
    (after,) = {"n1", "n2"} - {before}
    with server(7021, after):
        move(job, before)
        restored_from(job)
        (directory / "go").touch()
        assert job.wait_end() == "COMPLETED", job.output()
    assert job.output() == "listens\nrank 1\n"
    assert not events(job)
    assert_nothing_left(cluster, before, after)


def test_a_restored_server_is_reached_from_other_hosts(cluster: Cluster, directory: Path) -> None:
    """At the address of the node where it is now, also from there. Not from the old node: its address is the pod's."""
    program = r"""
import socket
listener = socket.create_server(("", 7041))
print("listens", flush=True)
while True:
    one, _ = listener.accept()
    word = one.recv(10)
    one.sendall(word.upper())
    if word == b"end": break
"""
    asks = "import socket, sys; s = socket.create_connection((sys.argv[1], 7041), 20); s.sendall(sys.argv[2].encode()); print(s.recv(10).decode())"
    job = submit(cluster, directory, program)
    job.wait_output("^listens$")
    job.checkpoint()
    before = job.node()
    move(job, before)
    restored_from(job)
    after = job.node()
    if any("only if the kernel has chosen it" in event["text"] for event in job.status().get("events", [])):
        pytest.skip("this pasta (Debian trixie's) forwards no ports that programs choose")

    def answer(host: str, word: str) -> str:
        return cluster.run("python3", "-c", asks, after, word, node=host, check=False).stdout

    # pasta looks once a second which ports there are.
    wait_for("an answer", lambda: answer("login", "hello") == "HELLO\n")
    assert [answer(host, host) for host in ("ctl", after)] == ["CTL\n", f"{after.upper()}\n"]
    assert answer("login", "end") == "END\n"
    assert job.wait_end() == "COMPLETED", job.output()
    assert_nothing_left(cluster, before, after)


def test_without_pasta_the_restore_goes_on(cluster: Cluster, directory: Path) -> None:
    """The record says why there is no way out; what needs one fails at once."""
    program = r"""
import os, socket, time
s = socket.create_server((socket.gethostname(), 0))
print("bound", flush=True)
while not os.path.exists("go"): time.sleep(0.05)
try: socket.create_connection(("ctl", 6817), 60)
except OSError as error: print(error.strerror)
socket.create_connection(s.getsockname(), 60)
"""
    with settings(cluster, '[restore]\npasta = "no-pasta"'):
        job = submit(cluster, directory, program)
        job.wait_output("^bound$")
        job.checkpoint()
        move(job, job.node())
        restored_from(job)
        (directory / "go").touch()
        assert job.wait_end() == "COMPLETED", job.output()
    assert job.output() == "bound\nNetwork is unreachable\n"
    assert events(job) == ["step batch: restored without a way out of its network: no-pasta is not installed"]


def test_steps_of_a_job_still_find_each_other(cluster: Cluster, directory: Path) -> None:
    """By the name that the script had found out: one that came back, one that starts afresh, and the script itself."""
    (directory / "serve.py").write_text(r"""
import socket
listener = socket.create_server((socket.gethostname(), 7051))
print("serves", flush=True)
for number in range(3):
    one, _ = listener.accept()
    with one: one.sendall(f"{one.recv(10).decode()} is {number}".encode())
""")
    (directory / "ask.py").write_text(r"""
import os, socket, sys, time
if sys.argv[1] == "restored": print("waits", flush=True)
while not os.path.exists("go." + sys.argv[1]): time.sleep(0.05)
with socket.create_connection((os.environ["MASTER_ADDR"], 7051), 60) as one:
    one.sendall(sys.argv[1].encode())
    print(one.recv(20).decode(), flush=True)
""")
    script = """
export MASTER_ADDR=$(hostname)
python3 serve.py &
srun -n1 --overlap python3 ask.py restored
srun -n1 --overlap python3 ask.py fresh
python3 ask.py script
wait
"""
    job = cluster.submit(script, "--checkpoint-interval=infinite", "--time=5", "--ntasks=2", directory=directory)
    job.wait_output("^waits$")
    job.wait_output("^serves$")
    job.checkpoint()
    before = job.node()
    move(job, before)
    restored_from(job)
    after = job.node()
    for number, name in enumerate(("restored", "fresh", "script")):
        (directory / f"go.{name}").touch()
        job.wait_output(f"^{name} is {number}$")
    assert job.wait_end() == "COMPLETED", job.output()
    assert not events(job)
    assert_nothing_left(cluster, before, after)


def test_steps_of_a_job_find_each_other_where_they_began(cluster: Cluster, directory: Path) -> None:
    """Back on its first node, a step whose connection to outside had an address of no node is where its script is."""
    (directory / "serve.py").write_text(r"""
import socket
listener = socket.create_server((socket.gethostname(), 7051))
print("serves", flush=True)
one, _ = listener.accept()
with one: one.sendall(b"found")
""")
    (directory / "ask.py").write_text(r"""
import os, socket, sys, time
def wait(name):
    while not os.path.exists(name): time.sleep(0.05)
print("waits", flush=True)
wait("away")
with socket.create_connection(("ctl", int(sys.argv[1])), 60) as outside:
    print("connected from", outside.getsockname()[0], flush=True)
    wait("back")
with socket.create_connection((os.environ["MASTER_ADDR"], 7051), 60) as one:
    print(one.recv(20).decode(), flush=True)
""")
    script = """
export MASTER_ADDR=$(hostname)
python3 serve.py &
srun -n1 python3 ask.py 7396
wait
"""
    with server(7396):
        job = cluster.submit(script, "--checkpoint-interval=infinite", "--time=5", directory=directory)
        job.wait_output("^waits$")
        job.wait_output("^serves$")
        job.checkpoint()
        first = job.node()
        move(job, first)
        restored_from(job)
        (directory / "away").touch()
        job.wait_output(r"^connected from 169\.254\.77\.1$")
        job.checkpoint()
        second = job.node()
        move(job, second)
        wait_attempts(job, 3)
        restored_from(job)
        assert job.node() == first
        job.checkpoint()
        (directory / "back").touch()
        job.wait_output("^found$")
        assert job.wait_end() == "COMPLETED", job.output()
    assert not events(job)
    assert_nothing_left(cluster, first, second)
