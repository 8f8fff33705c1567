"""Which process of a pod waits for which srun; real processes stand for stand-ins."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt.capture.processes import Process, read_process
from slurmckpt.coordinator.script import stand_ins
from slurmckpt.coordinator.script.launch import Launch, Pipes
from slurmckpt.coordinator.script.stand_ins import StandIn, Underway, find
from tests.unit.coordinator.parts import no_descriptor_is_lost
from tests.unit.coordinator.script.world import World, launch_of


class Node:
    """A script with sruns, and processes that may be their stand-ins."""

    def __init__(self, top: Path) -> None:
        self.world = World(top)
        self.script = self.world.script
        shutil.copy("/bin/sleep", self.world.stand_in)
        self.started: list[subprocess.Popen[bytes]] = []
        self.pipes: list[Pipes] = []

    def launch(self) -> tuple[Launch, Pipes]:
        pipes = Pipes.new()
        self.pipes.append(pipes)
        launch = launch_of({}, pipes, len(self.script.launches))
        self.script.launches[launch.number] = launch
        return launch, pipes

    def process(self, *descriptors: int, program: str = "", stdin: int | None = None) -> Process:
        command = [program or str(self.world.stand_in), "1000"]
        started = subprocess.Popen(command, pass_fds=descriptors, stdin=stdin)
        self.started.append(started)
        found = read_process(started.pid)
        assert found is not None
        return found

    def stand_in(self, pipes: Pipes, stdin: int | None = None) -> Process:
        return self.process(pipes.signals_write, pipes.status_read, stdin=stdin)

    def close(self) -> None:
        for started in self.started:
            started.kill()
            started.wait()
        for pipes in self.pipes:
            pipes.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with no_descriptor_is_lost(), contextlib.closing(Node(tmp_path)) as made:
        yield made


def test_each_is_found_by_its_pipes(node: Node) -> None:
    one, first = node.launch()
    two, second = node.launch()
    processes = [node.stand_in(second), node.process(program="/bin/sleep"), node.stand_in(first)]
    assert find(node.script, processes) == [StandIn(processes[0], two, None, ""), StandIn(processes[2], one, None, "")]


def test_one_whose_srun_has_ended_has_not_read_that_yet(node: Node) -> None:
    one, first = node.launch()
    one.status = 256
    one.ended.set()
    process = node.stand_in(first)
    (found,) = find(node.script, [process])
    assert (found.launch, found.status) == (one, 256)
    # And when it has read it, it is no stand-in any more.
    assert find(node.script, []) == []


def test_one_that_has_not_its_pipes_yet(node: Node) -> None:
    _, first = node.launch()
    processes = [node.stand_in(first), node.process(first.signals_write)]
    with pytest.raises(Underway, match=r"^an srun of the script is just starting$"):
        find(node.script, processes)


def test_one_that_is_at_the_desk(node: Node) -> None:
    node.script.arriving = 1
    with pytest.raises(Underway, match=r"^an srun of the script is just starting$"):
        find(node.script, [])


def test_one_that_is_gone_before_its_srun(node: Node) -> None:
    node.launch()
    with pytest.raises(Underway, match=r"^an srun of the script is just ending$"):
        find(node.script, [])


def test_a_program_of_the_same_name_with_the_same_pipes_is_none(node: Node, tmp_path: Path) -> None:
    _, first = node.launch()
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy("/bin/sleep", other / "srun")
    with pytest.raises(Underway, match="just ending"):
        find(node.script, [node.process(first.signals_write, first.status_read, program=str(other / "srun"))])


def test_one_that_is_gone_while_we_look(node: Node) -> None:
    process = node.process()
    node.started[0].kill()
    node.started[0].wait()
    assert find(node.script, [process]) == []


def test_its_pipes_are_lent_for_a_moment(node: Node) -> None:
    reading, writing = os.pipe()
    one, first = node.launch()
    process = node.stand_in(first, stdin=reading)
    one.modes = {0: os.fstat(reading).st_mode}
    os.close(reading)
    with no_descriptor_is_lost(), stand_ins.pipes(StandIn(process, one, None, "")) as lent:
        assert list(lent) == [0]
        os.write(writing, b"input")
        assert os.read(lent[0], 99) == b"input"
    os.close(writing)
    # One that has closed it meanwhile, or never had it.
    one.modes = {77: 0o010600, 2: 0o010600}
    with no_descriptor_is_lost(), pytest.raises(OSError), stand_ins.pipes(StandIn(process, one, None, "")):
        pass
