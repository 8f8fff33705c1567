"""File systems that a job mounts inside its pod, FUSE or other, and those that were mounted outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurmckpt.capture.inspect.mounts import Mount, made_inside
from slurmckpt.capture.preflight import PodScan, scan
from tests.unit.capture.looking import PYTHON

MakePod = Callable[..., Any]
SERVER = Path(__file__).parent / "fuse.py"
WHERE = "that was mounted inside the job and is not there at a restore"
REMEDY = "unmount it before a checkpoint, or mount it outside the job"


def look(pod: Any) -> PodScan:
    """With this very process as the one outside: the pod's mounts were made from its own."""
    return scan(pod.init, pod.leader, shim_pid=os.getpid())


@pytest.fixture
def point(tmp_path: Path) -> Path:
    found = tmp_path / "mount"
    found.mkdir()
    return found


@pytest.mark.root
@pytest.mark.parametrize(
    ("use", "what"),
    [
        ("keep = open('{point}/f', 'rb')", "has {point}/f open"),
        ("with open('{point}/f', 'rb') as f: keep = map_file(f)", "has {point}/f mapped"),
        ("os.chdir('{point}')", "works in {point}"),
    ],
    ids=["open", "mapped", "directory"],
)
def test_what_lies_on_a_mount_of_the_job(make_pod: MakePod, point: Path, use: str, what: str) -> None:
    pod = make_pod(
        f"""
import ctypes, subprocess
def map_file(f):  # Python's own mmap keeps a descriptor
    return ctypes.CDLL(None).mmap(None, ctypes.c_size_t(4096), 1, 1, f.fileno(), ctypes.c_long(0))
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "{point}"], check=True)
with open("{point}/f", "wb") as f:
    f.write(b"x" * 4096)
{use.format(point=point)}
ready()
"""
    )
    assert look(pod).refusals == [
        f"process 2 {PYTHON} {what.format(point=point)}, on a file system (tmpfs) {WHERE}: {REMEDY}"
    ]
    # Without anything to compare with, it is just a file.
    assert scan(pod.init, pod.leader).refusals == []


@pytest.mark.root
def test_an_unused_mount_is_no_reason(make_pod: MakePod, point: Path) -> None:
    pod = make_pod(f'import subprocess\nsubprocess.run(["mount", "-t", "tmpfs", "x", "{point}"], check=True)\nready()')
    assert look(pod).refusals == []


@pytest.mark.root
def test_a_fuse_file_system_that_the_job_serves(make_pod: MakePod, point: Path) -> None:
    pod = make_pod(
        f"""
import os
import subprocess
server = subprocess.Popen(["{sys.executable}", "{SERVER}", "{point}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
if server.stdout.readline() != b"mounted\\n":
    ready("no FUSE: " + server.stderr.read().decode())
server.stdout.close()
server.stderr.close()
keep = open("{point}/hello")
ready()
"""
    )
    if pod.report.startswith("no FUSE"):
        pytest.skip(pod.report)
    assert look(pod).refusals == [
        f"process 3 {PYTHON} serves a FUSE file system, which cannot be captured: {REMEDY}",
        f"process 2 {PYTHON} has {point}/hello open, on a file system (fuse.hello) {WHERE}: {REMEDY}",
    ]


@pytest.fixture
def served(point: Path) -> Iterator[Path]:
    """A FUSE file system of this machine."""
    server = subprocess.Popen(
        [sys.executable, SERVER, point], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert server.stdout is not None and server.stderr is not None
    with server.stdout, server.stderr:
        if server.stdout.readline() != "mounted\n":
            pytest.skip(f"no FUSE here: {server.stderr.read()}")
        yield point
        subprocess.run(["umount", "--lazy", point], check=True)
        server.kill()
        server.wait()


@pytest.mark.root
def test_a_fuse_file_system_of_the_node_is_one_like_any_other(make_pod: MakePod, served: Path) -> None:
    """CRIU dumps and restores files on it, open or mapped. But its content proves nothing for a fingerprint."""
    found = look(make_pod(f"keep = open('{served}/hello')\nos.chdir('{served}')\nready()"))
    assert found.refusals == []
    assert not [file for file in found.used_files if file.path.startswith(str(served))]


def test_which_mounts_count() -> None:
    outside = {1: Mount("ext4", "8:1", "/"), 2: Mount("nfs4", "0:50", "/home")}
    pod = {
        11: Mount("ext4", "8:1", "/"),
        12: Mount("nfs4", "0:50", "/home"),
        13: Mount("proc", "0:60", "/proc"),
        14: Mount("mqueue", "0:61", "/dev/mqueue"),
        15: Mount("tmpfs", "0:62", "/dev/shm"),
        16: Mount("fuse.sshfs", "0:63", "/home/jane/there"),
        17: Mount("ext4", "8:1", "/home/jane/bound"),
    }
    assert made_inside(pod, outside) == {16}
    assert made_inside(pod, {}) == set()
