"""A batch script in a cut: its sruns as they were at the boundary, its input at rest, or why it is left out."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from slurmckpt.capture.preflight import PodScan
from slurmckpt.capture.processes import Process
from slurmckpt.coordinator import freeze, group
from slurmckpt.coordinator.choice import Choice, Doubtful, Ended, Skipped, Unsettled, choose
from slurmckpt.coordinator.doubts import Doubts
from slurmckpt.coordinator.group import Captured, capture
from slurmckpt.coordinator.script import stand_ins
from slurmckpt.coordinator.script.launch import Launch
from slurmckpt.coordinator.script.marks import Marks
from slurmckpt.coordinator.script.script import Script
from slurmckpt.coordinator.script.stand_ins import StandIn, Underway
from slurmckpt.store.identity import UserFiles
from tests.unit.coordinator.parts import NOBODY, launch, no_descriptor_is_lost, without_doubts
from tests.unit.coordinator.test_group import SCAN, Stage, StillPod, running

REFUSED = PodScan([], ["process 101 uses io_uring"], [], [], [], [], [])


class Scripted(Stage):
    """A batch script that waits for steps. refused: what the look at its pod finds."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(top, monkeypatch)
        self.refused = SCAN
        self.seen: list[str] = []
        self.script = Script(cast(Any, None), Path("/"), Path("/"), Path("/"), {b"SLURM_A": b"1"}, {}, Marks())
        self.steps = [running("batch")]
        self.at_look: Callable[[], None] = lambda: None
        self.doubts = without_doubts()
        monkeypatch.setattr(group, "choose", choose)
        monkeypatch.setattr(freeze, "pod_processes", lambda init_pid: [])
        monkeypatch.setattr(stand_ins, "find", self._find)

    def _scan(self, *given: Any) -> PodScan:
        assert isinstance(given[2], Choice)
        self.seen.append(given[0].name)
        return self.refused if given[0].name == "batch" else super()._scan(*given)

    def _find(self, script: Script, processes: Sequence[Process]) -> list[StandIn]:
        process = Process(os.getpid(), 120, 1, 0, "srun", "", "S", 0)
        found = [StandIn(process, one, one.status, one.step) for one in script.launches.values()]
        self.at_look()
        return found

    def step(self, name: str, source: int = stat.S_IFCHR, output: int = stat.S_IFREG) -> Launch:
        """An srun of the script that has brought a step; nothing is lent from a stand-in for it."""
        one = launch(int(name), source, output)
        one.step = name
        self.script.launches[int(name)] = one
        brought = running(name)
        brought.launch = one
        self.steps.append(brought)
        return one

    def cut(self, files: UserFiles) -> Captured:
        with no_descriptor_is_lost():
            return asyncio.run(capture(self.steps, self.script, 4, self.tools, files, self.doubts))

    def unsettled(self, files: UserFiles, kind: type[Skipped] = Unsettled) -> str:
        with pytest.raises(kind) as raised:
            self.cut(files)
        assert type(raised.value) is kind
        assert not self.tools.staging.exists() or os.listdir(self.tools.staging) == []
        return str(raised.value)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    return Scripted(tmp_path, monkeypatch)


def test_the_script_with_its_steps(stage: Scripted, user_files: UserFiles) -> None:
    stage.step("0")
    one = launch(7)
    stage.script.launches[7] = one
    captured = stage.cut(user_files)
    assert [step.step for step in captured.steps] == ["batch", "0"]
    # Before the freeze and in it, each once.
    assert stage.seen == ["batch", "0", "batch", "0"]
    assert (captured.script, captured.without_script) == (stage.script, "")
    batch, step = captured.steps
    assert [(srun.number, srun.pid, srun.step, srun.status) for srun in batch.launches] == [
        (0, 120, "0", None),
        (7, 120, "", None),
    ]
    assert (step.launches, step.environment) == ([], None)
    assert (captured.directory / "batch" / "environment").read_bytes() == b"SLURM_A=1\0"
    assert (captured.directory / "batch" / "launches" / "7").exists()


def test_an_srun_that_ends_right_after_the_thaw_runs_in_the_image(stage: Scripted, user_files: UserFiles) -> None:
    one = stage.step("0")

    def ends() -> None:
        one.status = 0
        one.ended.set()

    stage.criu.after_thaw = ends
    (srun,) = stage.cut(user_files).steps[0].launches
    assert (srun.step, srun.status, srun.payload) == ("0", None, "launches/0")


def test_an_srun_that_brings_its_step_right_after_the_thaw_has_none_in_the_image(
    stage: Scripted, user_files: UserFiles
) -> None:
    """With it the restore would wait for a step that is not in the checkpoint."""
    one = launch(0)
    stage.script.launches[0], stage.script.numbered = one, 1

    def comes() -> None:
        one.step = "12"
        stage.script.numbered = 2

    stage.criu.after_thaw = comes
    captured = stage.cut(user_files)
    assert [step.step for step in captured.steps] == ["batch"]
    assert [(srun.step, srun.status) for srun in captured.steps[0].launches] == [("", None)]
    assert captured.launches_started == 1


def test_one_that_has_ended_but_is_still_waited_for(stage: Scripted, user_files: UserFiles) -> None:
    over = launch(3)
    over.status = 256
    over.ended.set()
    stage.script.launches[3] = over
    (srun,) = stage.cut(user_files).steps[0].launches
    assert (srun.number, srun.status, srun.payload) == (3, 256, None)


def ends(stage: Scripted, one: Launch) -> None:
    one.status = 0
    one.ended.set()


def comes(stage: Scripted, one: Launch) -> None:
    new = launch(9)
    new.step = "9"
    stage.script.launches[9] = new


def is_off(stage: Scripted, one: Launch) -> None:
    new = launch(9)
    new.outside = "a step of it runs with --checkpoint-interval=off"
    stage.script.launches[9] = new


def stops(stage: Scripted, one: Launch) -> None:
    pod = stage.steps[1].pod
    assert pod is not None
    pod.tasks[0].status = 0


@pytest.mark.parametrize("change", [ends, comes, is_off, stops])
def test_what_changes_between_the_choice_and_the_boundary(
    stage: Scripted, user_files: UserFiles, change: Callable[[Scripted, Launch], None]
) -> None:
    one = stage.step("0")
    stage.at_look = lambda: change(stage, one)
    assert stage.unsettled(user_files) == "a step is just starting or ending"
    # It was undone before anything ran, and may be tried at once.
    assert not any(event.endswith("runs") for event in stage.criu.events)


def test_a_stand_in_that_is_just_starting(stage: Scripted, user_files: UserFiles) -> None:
    def look() -> None:
        raise Underway("an srun of the script is just starting")

    stage.step("0")
    stage.at_look = look
    assert stage.unsettled(user_files) == "an srun of the script is just starting"


@pytest.mark.parametrize("arrives", [True, False])
def test_what_an_srun_holds_that_comes_while_the_script_is_looked_at(
    stage: Scripted, user_files: UserFiles, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    """It is no reason to leave the script out of the checkpoint, or to take none: its pipes were not known yet."""
    stage.step("0")
    stage.refused = REFUSED
    scan = stage._scan

    def look(*given: Any) -> PodScan:
        stage.script.numbered += arrives
        return scan(*given)

    monkeypatch.setattr(group, "look", look)
    monkeypatch.setattr(stage, "at_look", lambda: None if arrives else comes_to_the_desk())

    def comes_to_the_desk() -> None:
        raise Underway("an srun of the script is just starting")

    assert stage.unsettled(user_files) == "an srun of the script is just starting"
    assert stage.criu.events == []


def test_what_an_srun_holds_that_was_just_coming_when_the_look_began(stage: Scripted, user_files: UserFiles) -> None:
    """It counts as one of the script's already, and is still connected to the coordinator."""
    stage.step("0")
    stage.refused = REFUSED
    stage.script.numbered, stage.script.arriving = 1, 1

    def arrives() -> None:
        stage.script.arriving = 0

    stage.at_look = arrives
    assert stage.unsettled(user_files) == "an srun of the script is just starting"
    assert stage.criu.events == []


def test_the_script_is_left_out_when_two_looks_agree(stage: Scripted, user_files: UserFiles) -> None:
    """What keeps it out of the checkpoint may be a moment's, and a restore would begin the script anew."""
    stage.step("0")
    stage.refused = REFUSED
    stage.doubts = Doubts()
    assert stage.unsettled(user_files, Doubtful) == "process 101 uses io_uring"
    assert stage.unsettled(user_files, Doubtful) == "process 101 uses io_uring", "the same look, once more"
    stage.doubts.look_again()
    captured = stage.cut(user_files)
    assert ([step.step for step in captured.steps], captured.without_script) == (["0"], "process 101 uses io_uring")


def test_a_step_that_is_just_starting_stops_no_rank(stage: Scripted, user_files: UserFiles) -> None:
    stage.step("0")
    stage.steps[1].pod = None
    assert stage.unsettled(user_files) == "step 0 is just starting or ending"
    assert stage.criu.events == []


def test_the_tasks_of_a_step_that_end_at_the_boundary(stage: Scripted, user_files: UserFiles) -> None:
    stage.step("0")
    pod = stage.steps[1].pod
    assert isinstance(pod, StillPod)
    pod.at_sync = lambda: stops(stage, stage.script.launches[0])
    assert stage.unsettled(user_files, Ended) == "the tasks of step 0 have ended"


@pytest.mark.parametrize(("source", "output"), [(stat.S_IFREG, stat.S_IFREG), (stat.S_IFCHR, stat.S_IFREG)])
def test_what_flows_into_the_image_has_arrived_before_the_dump(
    stage: Scripted, user_files: UserFiles, source: int, output: int
) -> None:
    stage.step("0", source, output)
    reading, writing = os.pipe()
    stage.steps[1].streams.inputs.append(os.open(f"/proc/self/fd/{reading}", os.O_PATH))
    os.write(writing, b"read ahead\n")
    captured = stage.cut(user_files)
    events = stage.criu.events
    fed = source == stat.S_IFREG
    (srun,) = captured.steps[0].launches
    assert srun.input == ("launches/0.input" if fed else None)
    if fed:
        assert events.index("drained") < min(events.index("batch dumps"), events.index("0 dumps"))
        assert (captured.directory / "batch" / "launches" / "0.input").read_bytes() == b"read ahead\n"
        assert NOBODY in stage.drained[1]
    assert os.read(reading, 99) == b"read ahead\n"
    stage.steps[1].streams.close()
    os.close(reading)
    os.close(writing)


def test_tasks_that_have_read_different_amounts(stage: Scripted, user_files: UserFiles) -> None:
    stage.step("0", stat.S_IFREG)
    pipes = [os.pipe() for _ in range(2)]
    for number, (reading, writing) in enumerate(pipes):
        stage.steps[1].streams.inputs.append(os.open(f"/proc/self/fd/{reading}", os.O_PATH))
        os.write(writing, b"line\n" * number)
    reason = (
        "the tasks of step 0 have read different amounts of their common standard input: let one of them have it (srun"
        " --input=TASK), or let them read a file"
    )
    assert stage.unsettled(user_files, Doubtful) == reason
    stage.steps[1].streams.close()
    for ends in pipes:
        for descriptor in ends:
            os.close(descriptor)


def test_a_script_that_cannot_be_captured_is_left_out_and_says_why(stage: Scripted, user_files: UserFiles) -> None:
    stage.step("0")
    stage.refused = REFUSED
    captured = stage.cut(user_files)
    assert [step.step for step in captured.steps] == ["0"]
    assert (captured.script, captured.without_script) == (None, "process 101 uses io_uring")
    assert stage.criu.events[0] == "0 stopped"
    assert not (captured.directory / "batch").exists()


def test_a_script_that_cannot_be_captured_with_a_step_bound_to_it(stage: Scripted, user_files: UserFiles) -> None:
    stage.step("0", output=stat.S_IFIFO)
    stage.refused = REFUSED
    assert stage.unsettled(user_files, Skipped) == (
        "the batch script cannot be captured: process 101 uses io_uring,"
        " and the script handles output or input of step 0"
    )
    assert stage.criu.events == []


def test_a_script_alone_that_cannot_be_captured(stage: Scripted, user_files: UserFiles) -> None:
    stage.refused = REFUSED
    assert stage.unsettled(user_files, Doubtful) == "process 101 uses io_uring"
