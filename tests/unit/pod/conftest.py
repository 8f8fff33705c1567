"""Builds the programs once and hands out fake coordinators that leave nothing behind."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.pod.harness import UID, FakeCoordinator, build
from tests.unit.pod.relaying import Stage

_SYS_RT_SIGACTION = {"x86_64": 13, "aarch64": 134}


@pytest.fixture(scope="session", autouse=True)
def default_signals() -> None:
    """The signals that the C library hides (32, 33) as they are after a boot: make 4.3 ignores them for its children.

    What a shim finds ignored it rightly hands to the task, so the tests must begin with nothing ignored.
    """
    default = bytes(32)  # struct kernel_sigaction: SIG_DFL, no flags, no mask
    for signal in (32, 33):
        done = ctypes.CDLL(None).syscall(_SYS_RT_SIGACTION[platform.machine()], signal, default, None, 8)
        assert done == 0


@pytest.fixture(scope="session", autouse=True)
def programs(default_signals: None) -> None:
    if os.geteuid() != 0:
        pytest.skip("pods need root: they create PID, mount and IPC namespaces")
    if not shutil.which("make") or not shutil.which("cc"):
        pytest.skip("make and cc are needed to build the pod's programs")
    build("all", "build/check")


def pod_mounts() -> list[str]:
    """Mounts, as seen here, of the kinds that pod-init and these tests make."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point in ("/proc", "/dev/shm", "/dev/mqueue") or "slurmckpt-pod-" in point]


@pytest.fixture
def coordinator() -> Iterator[FakeCoordinator]:
    mounts = pod_mounts()
    fake = FakeCoordinator()
    yield fake
    fake.close()
    assert pod_mounts() == mounts, "a pod has left mounts behind"


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory that every user can enter and write (pytest's tmp_path is root's alone)."""
    with tempfile.TemporaryDirectory(prefix="slurmckpt-pod-") as name:
        Path(name).chmod(0o1777)
        yield Path(name)


@pytest.fixture
def stage(coordinator: FakeCoordinator) -> Iterator[Stage]:
    made = Stage(coordinator)
    yield made
    made.close()


@pytest.fixture(params=[UID, 0], ids=["own-pipe", "foreign-pipe"])
def owner(request: pytest.FixtureRequest) -> int:
    """slurmstepd's pipes are the user's; others cannot be opened a second time and are written to in another way."""
    return int(request.param)


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[str]]]:
    """Those that the test adds are killed after it."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for child in started:
        child.kill()
        child.communicate()
