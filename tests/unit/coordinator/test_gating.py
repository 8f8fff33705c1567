"""A step's gate: when its tasks get one, what their environment says, and what it tells."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slurmckpt.capture.gate import layout
from slurmckpt.capture.gate.region import Region
from slurmckpt.config import Gate, Paths, Settings
from slurmckpt.coordinator import gating, payload
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.pod_init import PodSettings
from slurmckpt.coordinator.step import Step
from tests.unit.coordinator import parts

NAME = "libnccl-profiler-slurmckpt-0123456789ab.so"
LIBRARY = b"/dev/shm/" + NAME.encode()


def test_the_environment_of_a_task() -> None:
    given = [b"PATH=/bin", b"weird", b"A=b=c"]
    assert gating.environment(given, NAME, "0") == [
        *given,
        b"NCCL_PROFILER_PLUGIN=" + LIBRARY,
        b"SLURM_CKPT_GATE=/dev/shm/slurmckpt-gate.0",
    ]


def test_the_users_own_profiler_comes_after_the_gate() -> None:
    made = gating.environment([b"NCCL_PROFILER_PLUGIN=mine", b"SLURM_CKPT_GATE_NEXT=old"], NAME, "0")
    assert b"SLURM_CKPT_GATE_NEXT=mine" in made and len(made) == 3


def test_a_step_of_a_script_that_has_a_gate_itself_keeps_what_comes_after() -> None:
    script = gating.environment([b"NCCL_PROFILER_PLUGIN=mine"], NAME, "batch")
    step = gating.environment(script, NAME, "3")
    assert sorted(step) == [
        b"NCCL_PROFILER_PLUGIN=" + LIBRARY,
        b"SLURM_CKPT_GATE=/dev/shm/slurmckpt-gate.3",
        b"SLURM_CKPT_GATE_NEXT=mine",
    ]


class Node:
    """A directory for /dev/shm, one for the programs, and a pod."""

    def __init__(self, top: Path) -> None:
        self.shm, self.libexec, self.driver = top / "shm", top / "libexec", top / "driver"
        self.shm.mkdir()
        self.libexec.mkdir()
        (self.libexec / gating.LIBRARY).write_bytes(b"library")
        self.settings = Settings(paths=Paths(libexec=self.libexec))
        pods = PodSettings(self.libexec, self.shm, top, True)
        self.pod = Pod("0", os.getuid(), os.getgid(), [], pods)

    def equip(self, enabled: str) -> dict[str, str]:
        """The variables of ours that a task then has."""

        async def scene() -> dict[str, str]:
            ours, theirs = parts.channels()
            task = parts.task(ours)
            settings = replace(self.settings, gate=Gate(enabled=enabled))  # type: ignore[arg-type]
            gating.equip([task], self.pod, settings, self.driver)
            found = payload.from_memfd(task.payload)
            assert found.argv == [b"/bin/true"] and found.header["cwd"] == "/home/jane"
            task.close()
            theirs.close()
            pairs = [entry.decode().partition("=") for entry in found.environment]
            return {name: value for name, _, value in pairs if name != "A"}

        return asyncio.run(scene())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_always(node: Node) -> None:
    variables = node.equip("always")
    (library,) = node.shm.glob("lib*")
    assert library.read_bytes() == b"library" and library.stat().st_mode & 0o777 == 0o755
    assert variables == {
        "NCCL_PROFILER_PLUGIN": f"/dev/shm/{library.name}",
        "SLURM_CKPT_GATE": "/dev/shm/slurmckpt-gate.0",
    }
    with Region.open(node.shm / "slurmckpt-gate.0") as region:
        assert region.snapshot().members == ()


@pytest.mark.parametrize(
    ("enabled", "prepare"),
    [
        ("off", lambda node: node.driver.touch()),
        ("auto", lambda node: None),
        ("always", lambda node: (node.libexec / gating.LIBRARY).unlink()),
        # The user's own directory stands in the way: no gate, and the task runs.
        ("always", lambda node: (node.shm / "slurmckpt-gate.0").mkdir()),
        # Or what stands where the library goes is not ours.
        ("always", lambda node: (node.shm / gating._bring(node.libexec / gating.LIBRARY, node.shm)).write_bytes(b"x")),
    ],
)
def test_without(enabled: str, prepare: Callable[[Node], None], node: Node) -> None:
    prepare(node)
    assert node.equip(enabled) == {}


def test_auto_where_there_is_a_driver(node: Node) -> None:
    node.driver.touch()
    assert "SLURM_CKPT_GATE" in node.equip("auto")


def test_gates_that_were_saved_closed_are_opened(node: Node) -> None:
    for name in ("slurmckpt-gate.0", "slurmckpt-gate.batch"):
        with Region.create(node.shm / name, -1, -1) as region:
            region.write(layout.CLOSED_AT, 1)
    (node.shm / "slurmckpt-gate.9").write_text("the user's")
    gating.reopen(node.shm)
    for name in ("slurmckpt-gate.0", "slurmckpt-gate.batch"):
        with Region.open(node.shm / name) as region:
            assert not region.header().closed


def test_a_pod_without_a_gate_tells_nothing(node: Node) -> None:
    assert gating.look(node.pod) is None
    Region.create(node.shm / "slurmckpt-gate.0", -1, -1).close()
    assert gating.look(node.pod) is None
    assert gating.document([Step("0", 1, 1, pod=node.pod)]) == {"ranks": [], "waits_for": []}


def test_who_is_alive(node: Node) -> None:
    node.pod.init_pid = os.getpid()
    alive = gating.alive_in(node.pod)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert alive(os.getpid()) and not alive(child)
    os.waitpid(child, 0)
    assert not alive(child) and not alive(2**50)


def test_another_release_brings_its_own_library(node: Node) -> None:
    first = node.equip("always")["NCCL_PROFILER_PLUGIN"]
    assert node.equip("always")["NCCL_PROFILER_PLUGIN"] == first
    (node.libexec / gating.LIBRARY).write_bytes(b"newer")
    assert node.equip("always")["NCCL_PROFILER_PLUGIN"] != first
    assert len(list(node.shm.glob("lib*"))) == 2
