from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.mounts import Mount, mounts_of, parse_mountinfo
from slurmckpt.capture.processes import pod_processes, read_process, walk
from slurmckpt.errors import SlurmckptError

pytestmark = pytest.mark.root

FAMILY = """
import ctypes
libc = ctypes.CDLL(None)
libc.prctl(36, 1, 0, 0, 0)  # child subreaper, as the real leader is
r, w = os.pipe()
if os.fork() == 0:
    libc.prctl(15, b"a)\\n(b", 0, 0, 0)
    if os.fork() == 0:
        if os.fork() == 0:
            os.write(w, b"x")
            signal.pause()
        os._exit(0)  # its child is an orphan now, adopted by the leader
    os.wait()
    os.write(w, b"x")
    signal.pause()
for _ in range(2):
    os.read(r, 1)
os.close(r), os.close(w)
ready()
"""


def test_finds_leader_and_all_descendants_by_their_numbers_inside(make_pod: Callable[..., Any]) -> None:
    pod = make_pod(FAMILY)
    found = pod_processes(pod.init, pod.leader)
    assert [p.pid for p in found] == sorted(p.pid for p in found)
    assert len(found) == 3
    leader = found[0]
    assert (leader.pid, leader.ns_pid, leader.ppid, leader.uid) == (pod.leader, 2, pod.init, 0)
    assert leader.exe == os.path.realpath(sys.executable)
    # The orphan was adopted by the leader and stays part of the tree.
    assert {p.ppid for p in found[1:]} == {pod.leader}
    assert len({p.ns_pid for p in found}) == 3


def test_descendants_have_the_rank_of_their_task(make_pod: Callable[..., Any]) -> None:
    pod = make_pod(FAMILY)
    child = next(p for p in pod_processes(pod.init, pod.leader) if ")" in p.comm and p.ppid == pod.leader)
    assert str(child) == f"process {child.ns_pid} (a)\\n(b)"
    found = {p.ns_pid: p for p in walk(pod.init, pod.leader, {child.ns_pid: 7}).members}
    assert str(found[child.ns_pid]) == f"process {child.ns_pid} (a)\\n(b) of rank 7"
    # The leader is nobody's, and neither is an orphan that it has adopted.
    assert [p.rank for p in found.values()] == [-1, 7, -1]
    (task,) = [p for p in walk(pod.init, pod.leader, {2: 0}).members if p.pid == pod.leader]
    assert task.rank == 0
    assert {p.rank for p in walk(pod.init, pod.leader, {2: 0}).members} == {0}


def test_a_hostile_name_stays_on_one_line(make_pod: Callable[..., Any]) -> None:
    pod = make_pod(FAMILY)
    named = [p for p in pod_processes(pod.init, pod.leader) if ")" in p.comm]
    assert named
    for process in named:
        assert "\n" not in str(process)
        assert str(process) == f"process {process.ns_pid} (a)\\n(b)"


def test_a_process_that_entered_from_outside_is_no_descendant(make_pod: Callable[..., Any]) -> None:
    pod = make_pod("ready()")
    command = ["nsenter", "--target", str(pod.init), "--pid", "--mount", "sh", "-c", "echo in; exec sleep 1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as outsider:
        assert outsider.stdout is not None
        try:
            assert outsider.stdout.readline() == b"in\n"
            assert [p.pid for p in pod_processes(pod.init, pod.leader)] == [pod.leader]
            everyone = pod_processes(pod.init)
            assert pod.leader in [p.pid for p in everyone]
            assert [p.uid for p in everyone if p.pid != pod.leader] == [0]
            assert len(everyone) == 2
        finally:
            for process in pod_processes(pod.init):
                if process.pid != pod.leader:
                    os.kill(process.pid, 9)


def test_a_namespace_inside_the_pod_is_told_apart(make_pod: Callable[..., Any]) -> None:
    pod = make_pod(
        """
import subprocess
nested = subprocess.Popen(["unshare", "--pid", "--fork", "sh", "-c", "echo; sleep 1000"], stdout=subprocess.PIPE)
nested.stdout.read(1)
ready()
"""
    )
    tree = walk(pod.init, pod.leader)
    assert [p.comm for p in tree.members if p.pid != pod.leader] == ["unshare"]
    assert "sh" in [p.comm for p in tree.nested]
    assert pod.leader not in [p.pid for p in tree.nested]


def test_a_pod_that_is_gone_is_an_error_of_one_line() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    with pytest.raises(SlurmckptError, match=rf"^the pod is gone: its init, process {ended.pid}, has ended$"):
        pod_processes(ended.pid)


def test_a_process_that_is_gone_is_none() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    assert read_process(ended.pid) is None
    assert mounts_of(ended.pid) == {}


def test_a_zombie_has_no_mounts() -> None:
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert mounts_of(ended.pid) == {}


def test_own_mounts_agree_with_the_kernel(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as opened:
        text = procfs.read(f"/proc/self/fdinfo/{opened.fileno()}") or b""
        mount = int(procfs.fields(text)["mnt_id"])
    mounts = mounts_of(os.getpid())
    assert mount in mounts
    assert "proc" in {one.kind for one in mounts.values()}


def escaped(path: str) -> str:
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\#" else c for c in path)


@given(
    st.dictionaries(
        st.integers(1, 2**31 - 1),
        st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\0")), st.sampled_from(["ext4", "nfs4"])),
        max_size=5,
    ),
    st.lists(st.sampled_from(["shared:1", "master:7", "propagate_from:2"]), max_size=3),
)
def test_mountinfo_with_any_mount_point(mounts: dict[int, tuple[str, str]], optional: list[str]) -> None:
    text = "".join(
        " ".join([str(number), "1", "0:5", "/", "/" + escaped(path), "rw", *optional, "-", kind, "source", "rw"]) + "\n"
        for number, (path, kind) in mounts.items()
    )
    assert parse_mountinfo(text.encode()) == {
        number: Mount(kind, "0:5", "/" + path) for number, (path, kind) in mounts.items()
    }


@given(st.binary(max_size=300))
def test_mountinfo_of_any_shape_is_survived(text: bytes) -> None:
    assert all(isinstance(number, int) for number in parse_mountinfo(text))


def test_status_fields_cannot_be_forged_by_a_later_line() -> None:
    assert procfs.fields(b"Name:\tx\\nUid:\t7\nUid:\t5\t5\nUid:\t0\n") == {"Name": "x\\nUid:\t7", "Uid": "5\t5"}
