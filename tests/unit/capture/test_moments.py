"""What is true of a pod for a moment only: whoever looks just then must not take it for a reason to refuse."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect import descriptors, inspection, traits
from slurmckpt.capture.preflight import scan
from slurmckpt.capture.processes import descends, walk
from tests.unit.awaiting import wait_until
from tests.unit.capture.looking import MakePod, look, one_refusal

CHILD = """
import subprocess
child = subprocess.Popen(["sleep", "1000"])
ready(child.pid)
"""


def child_of(pod: Any) -> int:
    """The pid on this node of the process whose pid in the pod the leader has reported."""
    return next(one.pid for one in look(pod).processes if one.ns_pid == int(pod.report))


def ended(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].startswith("Z")


@pytest.mark.parametrize("last", ["mnt", "pid", "time"])
def test_a_process_that_ends_while_its_namespaces_are_looked_at(
    make_pod: MakePod, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """They are gone one look later, and it has made none for children of its own."""
    pod = make_pod(CHILD)
    child, real = child_of(pod), procfs.link

    def link(path: str, directory: int | None = None) -> str | None:
        found = real(path, directory)
        if path == last and directory is not None and f"/{child}/" in os.readlink(f"/proc/self/fd/{directory}"):
            os.kill(child, signal.SIGKILL)
            wait_until(lambda: ended(child), "the end of the child")
        return found

    monkeypatch.setattr(procfs, "link", link)
    assert look(pod).refusals == []
    assert ended(child)


def test_a_thread_that_ends_while_it_is_looked_at(make_pod: MakePod, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no open files then, nor a directory: the kernel says that they are not the process's."""
    pod = make_pod("import threading\nthreading.Thread(target=time.sleep, args=(1000,)).start()\nready()")
    monkeypatch.setattr(traits, "_compare", lambda one, other, what: int(one != other))
    assert "open files of its own" in look(pod).refusals[0], "so it would be judged"
    monkeypatch.setattr(traits, "_is_ending", lambda pid, tid: tid != pid)
    assert look(pod).refusals == []


def test_a_process_without_its_first_thread(make_pod: MakePod) -> None:
    """Its first thread has neither files nor a directory any more; that is not what is wrong with it."""
    code = """
import platform, subprocess
leave = {"x86_64": 60}.get(platform.machine(), 93)  # exit(2), of one thread
program = "import ctypes, threading, time\\nthreading.Thread(target=time.sleep, args=(1000,)).start()\\n"
child = subprocess.Popen([sys.executable, "-c", program + f"ctypes.CDLL(None).syscall({leave}, 0)"])
while open(f"/proc/{child.pid}/stat").read().rpartition(") ")[2][0] != "Z":
    time.sleep(0.01)
ready()
"""
    assert one_refusal(make_pod(code)).endswith(
        " has threads that run on after its first thread has ended (pthread_exit), which cannot be captured:"
        " let the first thread wait for the others"
    )


# The leader hands one end on to a process that did not exist yet when it was looked at, and gives up its own.
HAND_OVER = """
import signal
%s
def hand_over(*_):
    if os.fork() == 0:
        keep.close()
    else:
        give.close()
    while True:
        signal.pause()
signal.signal(signal.SIGUSR1, hand_over)
ready()
"""
ENDS = {
    "pipe": "reading, writing = os.pipe()\nkeep, give = os.fdopen(reading, 'rb', 0), os.fdopen(writing, 'wb', 0)",
    "unix": "keep, give = socket.socketpair()",
}


@pytest.mark.parametrize("kind", ENDS)
def test_an_end_that_somebody_has_who_is_younger_than_the_look(
    make_pod: MakePod, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pod = make_pod(HAND_OVER % ENDS[kind])
    seen: list[Any] = []
    real = descriptors.read_descriptors

    def read(processes: Any, limit: int) -> Any:
        """As if every look came just before the process that has the other end."""
        if not seen:
            os.kill(pod.leader, signal.SIGUSR1)
            wait_until(lambda: len(children_of(pod.leader)) == 1, "the child")
            wait_until(lambda: ends_of(pod.leader) == 1, "the end that is handed over")
        seen.append(processes)
        return real([one for one in processes if one.pid == pod.leader], limit)

    monkeypatch.setattr(inspection, "read_descriptors", read)
    assert scan(pod.init, pod.leader, set()).refusals == []
    assert len(seen) == 2, "it has been looked at twice"


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()


def ends_of(pid: int) -> int:
    links = [procfs.link(f"/proc/{pid}/fd/{name}") or "" for name in procfs.names(f"/proc/{pid}/fd")]
    return sum(link.startswith(("pipe:", "socket:")) for link in links)


def test_a_pidfd_of_a_process_that_is_younger_than_the_look(make_pod: MakePod, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = make_pod(CHILD.replace("ready(", "keep = os.pidfd_open(child.pid)\nready("))

    def early(*args: Any) -> Any:
        tree = walk(*args)
        return type(tree)([one for one in tree.members if one.pid == pod.leader], tree.nested)

    monkeypatch.setattr(inspection, "walk", early)
    assert look(pod).refusals == []


def test_who_descends_from_whom(make_pod: MakePod) -> None:
    pod = make_pod(CHILD)
    child = child_of(pod)
    assert descends(child, pod.leader) and descends(pod.leader, pod.leader)
    assert not descends(pod.init, pod.leader) and not descends(os.getpid(), pod.leader) and not descends(1, pod.leader)
    # Nobody's any more.
    assert descends(2**22 + 1, pod.leader)
