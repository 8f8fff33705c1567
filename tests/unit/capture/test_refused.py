"""What cannot be captured is told before the freeze: real kernel objects, and a sentence for each.

That CRIU really fails at each of these, or loses what it holds, was tried with CRIU 4.2.1 on Linux 6.18.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurmckpt.capture.preflight import scan
from tests.unit.capture.looking import PYTHON, look, one_refusal

pytestmark = pytest.mark.root
MakePod = Callable[..., Any]

# What the programs need to make system calls that Python does not offer; setup that the kernel refuses is a skip.
_CALL = """
import ctypes, errno, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    found = libc.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if found < 0:
        ready("no: " + os.strerror(ctypes.get_errno()))
    return found
"""
X86 = os.uname().machine == "x86_64"


def pod_with(make_pod: MakePod, code: str, **options: Any) -> Any:
    """A pod whose leader has executed `code`; skips the test where the kernel does not have the thing."""
    pod = make_pod(f"{_CALL}\n{code}\nready()", **options)
    if pod.report.startswith("no: "):
        pytest.skip(f"not on this kernel: {pod.report[4:]}")
    return pod


ANONYMOUS = [
    (
        "attributes = ctypes.create_string_buffer(128)\n"
        "struct.pack_into('IIQ', attributes, 0, 1, 128, 0)\n"  # PERF_TYPE_SOFTWARE
        "struct.pack_into('Q', attributes, 40, 0x61)\n"
        "keep = call(298, attributes, 0, -1, -1, 0)",
        "perf_event",
        "stop the profiler before a checkpoint",
    ),
    (
        "attributes = ctypes.create_string_buffer(72)\n"
        "struct.pack_into('IIII', attributes, 0, 2, 4, 8, 4)\n"  # BPF_MAP_TYPE_ARRAY
        "keep = call(321, 0, attributes, 72)",
        "bpf-map",
        "unload the BPF program before a checkpoint",
    ),
    (
        "keep = call(444, ctypes.create_string_buffer(struct.pack('Q', 1)), 8, 0)",
        "landlock-ruleset",
        "close it before a checkpoint",
    ),
]


@pytest.mark.skipif(not X86, reason="system calls by their numbers on x86_64")
@pytest.mark.parametrize(("code", "kind", "remedy"), ANONYMOUS, ids=[kind for _, kind, _ in ANONYMOUS])
def test_kernel_objects(make_pod: MakePod, code: str, kind: str, remedy: str) -> None:
    assert one_refusal(pod_with(make_pod, code)) == (
        f"process 2 {PYTHON} holds a descriptor of the kind {kind}, which cannot be captured: {remedy}"
    )


SECRET = (
    f"process 2 {PYTHON} has secret memory (memfd_secret), which nobody but itself can read:"
    " keep the secret in ordinary memory, or release it before a checkpoint"
)


@pytest.mark.parametrize("close", ["", "os.close(secret)"], ids=["open", "only mapped"])
def test_secret_memory(make_pod: MakePod, close: str) -> None:
    code = f"""
secret = call(447, 0)
os.ftruncate(secret, 4096)
libc.mmap.restype = ctypes.c_void_p
memory = libc.mmap(None, ctypes.c_size_t(4096), 3, 1, secret, ctypes.c_long(0))
{close}
"""
    assert one_refusal(pod_with(make_pod, code)) == SECRET


def test_secret_memory_that_is_not_mapped(make_pod: MakePod) -> None:
    assert one_refusal(pod_with(make_pod, "secret = call(447, 0)")) == SECRET


def test_a_posix_message_queue_that_has_lost_its_name(make_pod: MakePod, tmp_path: Path) -> None:
    code = f"""
import subprocess
os.mkdir("{tmp_path}/mqueue")
subprocess.run(["mount", "-t", "mqueue", "mqueue", "{tmp_path}/mqueue"], check=True)  # as pod init does in /dev
rt = ctypes.CDLL("librt.so.1", use_errno=True)
queue = rt.mq_open(b"/jobs", os.O_CREAT | os.O_RDWR, 0o600, None)
if queue < 0:
    ready("no: " + os.strerror(ctypes.get_errno()))
rt.mq_unlink(b"/jobs")
"""
    assert one_refusal(pod_with(make_pod, code)) == (
        f"process 2 {PYTHON} has a POSIX message queue open (/jobs (deleted)), which cannot be captured:"
        " close it before a checkpoint, or use a pipe, a socket or a System V message queue"
    )


def test_pidfds(make_pod: MakePod) -> None:
    """Of a process in the pod, of a zombie and of one that has been waited for they come back; of pod init not."""
    pod = make_pod(
        """
import subprocess
running, zombie, gone = subprocess.Popen(["sleep", "1000"]), subprocess.Popen(["true"]), subprocess.Popen(["true"])
keep = [os.pidfd_open(child.pid) for child in (running, zombie, gone)]
os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
gone.wait()
ready()
"""
    )
    assert look(pod).refusals == []
    pod = make_pod("keep = os.pidfd_open(1)\nready()")
    assert one_refusal(pod) == (
        f"process 2 {PYTHON} holds a descriptor (a pidfd) of process {pod.init} outside the pod,"
        " which cannot be captured: close it before a checkpoint"
    )


def test_a_pidfd_of_a_thread(make_pod: MakePod) -> None:
    pod = pod_with(make_pod, "keep = call(434, os.getpid(), os.O_EXCL)")  # PIDFD_THREAD
    assert one_refusal(pod) == (
        f"process 2 {PYTHON} holds a descriptor of a single thread (a pidfd), which cannot be captured:"
        " close it before a checkpoint"
    )


@pytest.mark.parametrize(("flag", "kind"), [(0x20000000, "PID"), (0x00000080, "time")])
def test_namespaces_for_children_to_come(make_pod: MakePod, flag: int, kind: str) -> None:
    """CRIU would dump the one without a word about it, and the restored process would have children elsewhere."""
    pod = pod_with(make_pod, f"if libc.unshare({flag}) != 0: ready('no: ' + os.strerror(ctypes.get_errno()))")
    assert one_refusal(pod) == (
        f"process 2 {PYTHON} has made a {kind} namespace for its children, which cannot be captured:"
        " start it without a container or sandbox of its own"
    )


@pytest.mark.parametrize("name", ["cgroup", "time"])
def test_a_namespace_of_its_own(make_pod: MakePod, name: str) -> None:
    code = f"""
import subprocess
other = subprocess.Popen(["unshare", "--{name}", "sh", "-c", "echo; exec sleep 1000"], stdout=subprocess.PIPE)
other.stdout.read(1)
other.stdout.close()
"""
    found = look(pod_with(make_pod, code)).refusals
    assert f"is in another {name} namespace than the pod" in "".join(found), found


def test_descriptors_above_what_a_restore_can_use(make_pod: MakePod, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = make_pod("os.dup2(0, 1000)\nready()")
    assert look(pod).refusals == []
    monkeypatch.setattr("slurmckpt.capture.inspect.inspection._open_limit", lambda: 1040)
    assert one_refusal(pod) == (
        f"process 2 {PYTHON} has the descriptor 1000 open, and a restore can use no more than 1040 on this node:"
        " open fewer, or let the administrator raise the limit of open files of slurmd (LimitNOFILE)"
    )
    monkeypatch.setattr("slurmckpt.capture.inspect.inspection._open_limit", lambda: 1200)
    assert scan(pod.init, pod.leader).refusals == []


def test_a_tcp_connection_with_slurmstepd(make_pod: MakePod) -> None:
    """As the ranks of a step with PMIx have; one with any other process of the node is reset at a restore."""
    stepd = """
import ctypes, socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
keep = server.accept()
sys.stdin.readline()
ctypes.CDLL(None).prctl(15, b"slurmstepd", 0, 0, 0)
print("named", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", stepd]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdin is not None
        port = int(other.stdout.readline())
        pod = make_pod(f"keep = socket.create_connection(('127.0.0.1', {port}))\nready()")
        assert look(pod).refusals == []
        assert len(look(pod).outside) == 1
        print("go", file=other.stdin, flush=True)
        assert other.stdout.readline() == "named\n"
        assert one_refusal(pod) == (
            f"process 2 {PYTHON} is connected with slurmstepd (PMIx), which cannot be captured:"
            " start the step with srun --mpi=none, and MPI programs with mpirun"
        )
        other.stdin.close()
