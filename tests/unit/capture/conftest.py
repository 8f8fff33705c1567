"""Real pods for the tests: a leader in PID, mount and IPC namespaces of its own, as root, on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.awaiting import wait_until

# pid 1 of the pod: starts the leader with /dev/null of the pod's own mounts as its stdio, and reaps.
_INIT = """
import os, sys
if os.fork() == 0:
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)
    os.setsid()
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[2], sys.argv[1]])
while True:
    try:
        os.wait()
    except ChildProcessError:
        os._exit(0)
"""
# The leader runs the test's code; the file sys.argv[1] appears when that code calls ready(text).
_LEADER = """
import os, signal, socket, sys, time
def ready(text="ready"):
    with open(sys.argv[1] + ".new", "w") as report:
        report.write(str(text))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    while True:
        signal.pause()
try:
    exec(CODE)
except BaseException:
    import traceback
    ready(traceback.format_exc())
"""


@dataclass(frozen=True)
class Pod:
    """init, leader: pids on this machine. report: what the leader's code gave to ready()."""

    init: int
    leader: int
    report: str


MakePod = Callable[..., Pod]


def children(pid: int) -> list[int]:
    """The oldest first, whatever its number: pids come round again."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except FileNotFoundError:
        return []


@pytest.fixture
def make_pod(tmp_path: Path) -> Iterator[MakePod]:
    """make_pod(code, pass_fds=(), options=()): a pod whose leader executes `code`, which must end with ready()."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with contextlib.ExitStack() as stack:

        def make(code: str, pass_fds: Sequence[int] = (), options: Sequence[str] = ()) -> Pod:
            report = tmp_path / f"report{len(list(tmp_path.iterdir()))}"
            leader = _LEADER.replace("CODE", repr(code))
            command = ["unshare", "--pid", "--mount", "--ipc", "--propagation", "slave", *options]
            command += ["--fork", "--kill-child", "--mount-proc", sys.executable, "-c", _INIT, str(report), leader]
            outer = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=pass_fds,
            )
            assert outer.stderr is not None
            stack.enter_context(outer.stderr)

            def end() -> None:
                for init in children(outer.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(init, signal.SIGKILL)
                outer.kill()
                outer.wait()

            stack.callback(end)
            wait_until(lambda: report.exists() or outer.poll() is not None, "the report of the pod")
            if outer.poll() is not None:
                pytest.skip(f"no namespaces here: {outer.stderr.read().decode().strip()}")
            text = report.read_text(encoding="utf-8")
            assert "Traceback" not in text, text
            (init,) = children(outer.pid)
            return Pod(init, children(init)[0], text)

        yield make


@pytest.fixture
def carry() -> Iterator[Callable[..., int]]:
    """carry(code, source, sink, *arguments) -> pid of a process that runs `code` with these two descriptors."""
    with contextlib.ExitStack() as stack:

        def start(code: str, source: int, sink: int, *arguments: int) -> int:
            command = [sys.executable, "-c", code, *map(str, (source, sink, *arguments))]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=sorted({source, sink}))
            stack.callback(end, process)
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            return process.pid

        yield start


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        with contextlib.suppress(OSError):
            os.close(descriptor)
