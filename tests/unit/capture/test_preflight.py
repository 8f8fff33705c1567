from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slurmckpt.capture.preflight import scan
from slurmckpt.capture.refusals import Reason, sentences
from tests.unit.capture.looking import PYTHON, MakePod, look, one_refusal

pytestmark = pytest.mark.root


def test_an_ordinary_program_has_nothing_against_it(make_pod: MakePod, tmp_path: Path) -> None:
    pod = make_pod(
        """
import select, threading
keep = [socket.socketpair(), os.pipe(), os.memfd_create("m"), os.eventfd(0) if hasattr(os, "eventfd") else None,
        select.epoll(), open("/dev/zero"), open("/dev/urandom"), os.openpty(),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0), socket.socket(),
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM), os.pidfd_open(os.getpid())]
r, w = os.pipe()
if os.fork() == 0:
    os.close(w)
    os.read(r, 1)
os.close(r)  # the two ends of this pipe are in two processes now
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
accepted = server.accept()
waiting = socket.create_connection(server.getsockname())  # never accepted
threading.Thread(target=signal.pause, daemon=True).start()
ready(f"{client.getsockname()[1]} {server.getsockname()[1]}")
"""
    )
    found = look(pod)
    assert found.refusals == []
    assert found.external == []
    assert found.outside == []
    client, server = (f"127.0.0.1:{port}" for port in pod.report.split())
    assert {(client, server), (server, client)} <= set(found.inside)
    assert found.addresses == []
    assert found.notes == []
    assert found.processes[0].ns_pid == 2
    assert len(found.processes) == 2


def test_files_that_are_written_are_reported_with_their_size(make_pod: MakePod, tmp_path: Path) -> None:
    name = "a file\nof the user"
    pod = make_pod(
        f"""
import ctypes
mmap = ctypes.CDLL(None, use_errno=True).mmap  # Python's own mmap keeps a descriptor
appended = open({str(tmp_path / name)!r}, "ab")
appended.write(b"12345")
appended.flush()
again = open({str(tmp_path / name)!r}, "rb")
only_read = open("/etc/passwd")
gone = open({str(tmp_path / "gone")!r}, "w")
os.unlink({str(tmp_path / "gone")!r})
kernel = open("/proc/self/oom_score_adj", "w")
with open({str(tmp_path / "mapped")!r}, "w+b") as one:
    one.truncate(8192)
    shared = mmap(None, ctypes.c_size_t(8192), 3, 1, one.fileno(), ctypes.c_long(0))
with open({str(tmp_path / "private")!r}, "w+b") as one:
    one.truncate(8192)
    private = mmap(None, ctypes.c_size_t(8192), 3, 2, one.fileno(), ctypes.c_long(0))
anonymous = mmap(None, ctypes.c_size_t(8192), 3, 0x21, -1, ctypes.c_long(0))
ready()
"""
    )
    found = look(pod)
    assert found.refusals == []
    files = {file.path: file for file in found.open_files}
    assert files.keys() == {str(tmp_path / name), str(tmp_path / "mapped")}
    appended = files[str(tmp_path / name)]
    status = (tmp_path / name).stat()
    assert (appended.size, appended.mode, appended.inode) == (5, status.st_mode, status.st_ino)
    assert appended.flags & os.O_APPEND and appended.flags & os.O_ACCMODE == os.O_WRONLY
    assert appended.pid == pod.leader
    assert os.readlink(f"/proc/{appended.pid}/fd/{appended.fd}") == str(tmp_path / name)
    mapped = files[str(tmp_path / "mapped")]
    assert (mapped.size, mapped.fd, mapped.flags) == (8192, -1, os.O_RDWR)


IO_URING = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
ring = libc.syscall(425, 2, ctypes.create_string_buffer(120))
{more}
ready(ring)
"""


IO_URING_REFUSAL = (
    'uses io_uring, which cannot be captured: let slurmckpt deny it (io_uring = "deny", programs fall back to epoll),'
    " or set USE_LIBUV=0 for PyTorch"
)


@pytest.mark.parametrize("how", ["open", "only mapped"])
def test_io_uring(make_pod: MakePod, how: str) -> None:
    mapped = "libc.mmap(None, ctypes.c_size_t(4096), 3, 1, ring, ctypes.c_long(0)), os.close(ring)"
    pod = make_pod(IO_URING.format(more=mapped if how == "only mapped" else ""))
    if pod.report == "-1":
        pytest.skip("this kernel denies io_uring")
    assert one_refusal(pod) == f"process 2 {PYTHON} {IO_URING_REFUSAL}"


def test_an_anonymous_descriptor_that_criu_does_not_know(make_pod: MakePod) -> None:
    pod = make_pod(
        """
import ctypes
ready(ctypes.CDLL(None, use_errno=True).syscall(323, 0o2000000 | 1))  # userfaultfd
"""
    )
    if pod.report == "-1" or os.uname().machine != "x86_64":
        pytest.skip("no userfaultfd here")
    assert one_refusal(pod) == (
        f"process 2 {PYTHON} holds a descriptor of the kind userfaultfd, which cannot be captured:"
        " close it before a checkpoint, or start the program without userfaultfd"
    )


DEVICES = [
    (
        "infiniband/uverbs0",
        "has the InfiniBand device {path} open, which cannot be captured:"
        " set NCCL_IB_DISABLE=1 (and UCX_TLS=tcp,self,sm for UCX) so that the ranks talk over TCP",
    ),
    (
        "dri/renderD128",
        "has the GPU device {path} open, and only those of NVIDIA can be captured: run it without this GPU, or close"
        " the device before a checkpoint",
    ),
    ("other0", "has the device {path} open, which cannot be captured: close it before a checkpoint"),
]


@pytest.mark.parametrize(("name", "sentence"), DEVICES)
def test_devices(make_pod: MakePod, name: str, sentence: str) -> None:
    # Nodes of these names on a /dev of the pod's own; what counts is the name, the driver is that of /dev/fuse or kmsg.
    pod = make_pod(
        f"""
import subprocess
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev"], check=True)
os.makedirs(os.path.dirname("/dev/{name}"), exist_ok=True)
os.mknod("/dev/{name}", 0o20600, os.makedev(1, 11))
device = os.open("/dev/{name}", os.O_WRONLY)
ready()
"""
    )
    assert one_refusal(pod) == f"process 2 {PYTHON} {sentence.format(path='/dev/' + name)}"


def test_a_terminal_from_outside(make_pod: MakePod) -> None:
    master, slave = os.openpty()
    try:
        pod = make_pod("ready()", pass_fds=(slave,))
        assert one_refusal(pod) == (
            f"process 2 {PYTHON} uses the terminal {os.ttyname(slave)} from outside the pod, which cannot be captured:"
            " run it without a terminal (srun gives one with --pty and --unbuffered)"
        )
    finally:
        os.close(master)
        os.close(slave)


def test_a_traced_process(make_pod: MakePod) -> None:
    pod = make_pod("ready()")
    tracer = f"""
import ctypes, signal, sys
libc = ctypes.CDLL(None)
print(libc.ptrace(0x4206, {pod.leader}, 0, 0), flush=True)  # PTRACE_SEIZE
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", tracer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as debugger:
        assert debugger.stdout is not None
        assert debugger.stdout.readline() == "0\n"
        refusal = one_refusal(pod)
        debugger.communicate("")
    assert refusal == (
        f"process 2 {PYTHON} is being traced by process {debugger.pid} {PYTHON}: detach the debugger or tracer first"
    )
    assert look(pod).refusals == []


@pytest.mark.parametrize("name", ["mnt", "user", "net", "ipc", "uts"])
def test_another_namespace(make_pod: MakePod, name: str) -> None:
    option = {"mnt": "mount", "user": "user"}.get(name, name)
    pod = make_pod(
        f"""
import subprocess
other = subprocess.Popen(["unshare", "--{option}", "sleep", "1000"])
while open(f"/proc/{{other.pid}}/comm").read() != "sleep\\n":
    pass
ready()
"""
    )
    sentences = look(pod).refusals
    assert (
        f"process 3 (sleep) is in another {name} namespace than the pod, which cannot be captured:"
        " start it without a container or sandbox of its own"
    ) in sentences
    # A new mount namespace gives its mounts new numbers, so what was inherited across it counts as foreign as well.
    assert all("another" in s or (name == "mnt" and "opened outside" in s) for s in sentences), sentences


def test_a_pid_namespace_inside_the_pod(make_pod: MakePod) -> None:
    pod = make_pod(
        """
import subprocess
other = subprocess.Popen(["unshare", "--pid", "--fork", "sh", "-c", "echo; exec sleep 1000"], stdout=subprocess.PIPE)
other.stdout.read(1)
other.stdout.close()
while open("/proc/4/comm").read() != "sleep\\n":
    pass
ready()
"""
    )
    found = look(pod).refusals
    assert [s for s in found if "PID namespace" in s] == [
        "process 4 (sleep) runs in a PID namespace that was made inside the pod, which cannot be captured:"
        " start it without a container or sandbox of its own"
    ]


def test_zombies_and_stopped_processes_are_no_reason(make_pod: MakePod) -> None:
    pod = make_pod(
        """
dead = os.fork()
if dead == 0:
    os._exit(0)
os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)
stopped = os.fork()
if stopped == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
os.waitid(os.P_PID, stopped, os.WSTOPPED | os.WNOWAIT)
ready()
"""
    )
    found = look(pod)
    assert found.refusals == []
    assert sorted(p.state for p in found.processes) == ["S", "T", "Z"]


def test_the_same_reason_of_many_processes_is_one_sentence(make_pod: MakePod) -> None:
    pod = make_pod(
        """
done_r, done_w = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        break
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
os.write(done_w, b"x")
if os.getpid() != 2:
    signal.pause()
for _ in range(4):
    os.read(done_r, 1)
ready()
"""
    )
    assert one_refusal(pod) == (
        f"process 2 {PYTHON} has a multipath TCP socket open, which cannot be captured (and 3 more processes"
        " too): for a Go program set GODEBUG=multipathtcp=0"
    )


def test_limits(make_pod: MakePod) -> None:
    pod = make_pod("keep = [os.pipe() for _ in range(20)]\nready()")
    assert look(pod, descriptors=10).refusals == [
        f"process 2 {PYTHON} and the rest of the pod hold more than 10 descriptors:"
        " end some, or close what is not in use: a larger pod cannot be looked at before a capture"
    ]
    assert look(pod, descriptors=100).refusals == []


def test_sentences_are_bounded(make_pod: MakePod) -> None:
    process = look(make_pod("ready()")).processes[0]
    reasons = [Reason(process, f"has problem {number}", "solve it") for number in range(5)]
    assert sentences(reasons, 2) == [
        f"process 2 {PYTHON} has problem 0: solve it",
        f"process 2 {PYTHON} has problem 1: solve it",
        "3 more reasons of this kind",
    ]


def test_descriptors_that_change_all_the_time_do_not_disturb(make_pod: MakePod) -> None:
    pod = make_pod(
        """
if os.fork() == 0:
    while True:
        a, b = socket.socketpair()
        r, w = os.pipe()
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        for s in (a, b):
            s.close()
        os.close(r), os.close(w)
ready()
"""
    )
    for _ in range(30):
        assert look(pod).refusals == []


def test_a_large_pod(make_pod: MakePod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 processes with 1,000 descriptors in all: nothing is asked for twice. `make bench` says how long it takes."""
    pod = make_pod(
        f"""
done_r, done_w = os.pipe()
for _ in range(63):
    if os.fork() == 0:
        break
keep = [os.pipe() for _ in range(3)], socket.socketpair(), os.memfd_create("m")
written = open(f"{tmp_path}/{{os.getpid()}}", "w")
os.write(done_w, b"x")
if os.getpid() != 2:
    signal.pause()
for _ in range(64):
    os.read(done_r, 1)
ready()
"""
    )
    calls = Counter[str]()
    for name in ("open", "readlink", "stat"):
        count_calls(monkeypatch, name, calls)
    found = look(pod)
    monkeypatch.undo()
    assert found.refusals == []
    assert len(found.processes) == 64
    assert len(found.open_files) == 64
    links = [os.readlink(f"/proc/{p.pid}/fd/{n}") for p in found.processes for n in os.listdir(f"/proc/{p.pid}/fd")]
    assert len(links) >= 900
    paths, pipes = sum(link.startswith("/") for link in links), [link for link in links if link.startswith("pipe:")]
    # A process: status (twice), stat, fd, fdinfo, ns, maps, personality, limits; and what the pod as a whole has.
    assert calls["open"] <= 9 * 64 + paths + len(set(pipes)) + 30
    # A process: its namespaces, its program, working directory and root.
    assert calls["readlink"] <= len(links) + 13 * 64 + 30
    assert calls["stat"] <= paths + len(pipes) + 30


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str, calls: Counter[str]) -> None:
    """Count the calls of a function of os, but those by which a process is found not to be one of the pod's."""
    real = getattr(os, name)

    def counted(path: Any, *arguments: Any, **named: Any) -> Any:
        calls[name] += not str(path).endswith("/ns/pid")
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, name, counted)


def test_a_leader_that_ends_during_the_look(make_pod: MakePod) -> None:
    pod = make_pod("ready()")
    os.kill(pod.leader, signal.SIGKILL)
    found = scan(pod.init, pod.leader) if os.path.exists(f"/proc/{pod.init}/ns/pid") else None
    assert found is None or found.refusals == []


def test_a_datagram_socket_in_a_directory_that_its_user_may_change_is_refused(
    make_pod: MakePod, tmp_path: Path
) -> None:
    own = tmp_path / "mine"
    own.mkdir()
    os.chown(own, 1000, 1000)
    shared = Path(f"/tmp/slurmckpt-{os.getpid()}.sock")
    bind = "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\ns.bind({!r})\nready()"
    listen = "s = socket.socket(socket.AF_UNIX)\ns.bind({!r})\ns.listen()\nready()"
    try:
        assert f"has a unix datagram socket at {own}/s, in a directory that its user may change" in one_refusal(
            make_pod(bind.format(str(own / "s")))
        )
        # /tmp itself: nobody can replace there what root makes.
        assert look(make_pod(bind.format(str(shared)))).refusals == []
        # The user makes it anew at a restore.
        assert look(make_pod(listen.format(str(own / "t")))).refusals == []
    finally:
        shared.unlink(missing_ok=True)
