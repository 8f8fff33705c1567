"""What lives on while its script goes back: real processes stand for sruns and their stand-ins."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from slurmckpt.capture.processes import Process
from slurmckpt.coordinator.recovery import sruns as module
from slurmckpt.coordinator.recovery.sruns import Bound, Sruns
from slurmckpt.coordinator.script.launch import Launch, Pipes
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.streams import OutputHolder
from slurmckpt.store.manifest import LaunchImage, StepImage
from tests.unit.coordinator.parts import image, no_descriptor_is_lost
from tests.unit.coordinator.script.test_stand_ins import Node
from tests.unit.coordinator.script.world import payload


class Scenery(Node):
    """A batch script that waits in sruns."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(top)
        self.processes: list[Process] = []
        self.step = Step("batch", 1, 1)
        monkeypatch.setattr(module, "pod_processes", lambda init_pid: self.processes)

    def srun(self, step: str = "", files: Sequence[int] = ()) -> tuple[Launch, Pipes]:
        """One that runs, with its stand-in. files: what both have open."""
        launch, pipes = self.launch()
        launch.step, launch.payload = step, payload(list(files))
        launch.pid = self.process(*files, program="/bin/sleep").pid
        waiting = self.process(pipes.signals_write, pipes.status_read, *files)
        self.processes.append(waiting)
        return launch, pipes

    def sruns(self) -> Sruns:
        return Sruns(self.script, self.step, cast(Any, type("Pod", (), {"init_pid": 1})))


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scenery]:
    with no_descriptor_is_lost(), contextlib.closing(Scenery(tmp_path, monkeypatch)) as made:
        yield made


@contextlib.contextmanager
def opened(path: Path, flags: int = os.O_WRONLY | os.O_CREAT) -> Iterator[int]:
    descriptor = os.open(path, flags)
    yield descriptor
    os.close(descriptor)


def saved(*launches: LaunchImage) -> StepImage:
    return replace(image(step="batch"), launches=list(launches))


def waiting(number: int = 0, step: str = "0", status: int | None = None, pid: int = 104) -> LaunchImage:
    """An srun as an image of another incarnation names it."""
    return LaunchImage(number, pid, step, status, f"pipe:[{number}1]", f"pipe:[{number}2]", "payload", None)


def bound(sruns: Sruns, saved_image: StepImage) -> str:
    with pytest.raises(Bound) as raised:
        sruns.match(saved_image)
    return str(raised.value)


def test_the_pipes_of_each_stand_in_are_held_for_the_restored_one(script: Scenery) -> None:
    launches = [script.srun("0")[0], script.srun("1")[0]]
    sruns = script.sruns()
    cut = saved(waiting(0, "0"), waiting(1, "1"))
    sruns.match(cut)
    inherit = sruns.inherit(cut)
    assert list(inherit) == ["pipe:[01]", "pipe:[02]", "pipe:[11]", "pipe:[12]"]
    keys = [key for launch in launches for key in (launch.signal_key, launch.status_key)]
    assert [f"pipe:[{os.fstat(descriptor).st_ino}]" for descriptor in inherit.values()] == keys
    sruns.close()


def test_its_launcher_does_not_see_that_the_stand_in_is_gone(script: Scenery) -> None:
    """It would kill its srun at the end of the pipe of signals."""
    _, pipes = script.srun("0")
    sruns = script.sruns()
    os.close(pipes.signals_write)
    os.set_blocking(pipes.signals_read, False)
    waits = next(one for one in script.started if one.pid == script.processes[0].pid)
    waits.kill()
    waits.wait()
    with pytest.raises(BlockingIOError):
        os.read(pipes.signals_read, 4)
    sruns.close()
    assert os.read(pipes.signals_read, 4) == b""
    # For the fixture, which closes it.
    os.dup2(pipes.status_read, pipes.signals_write)


def test_other_sruns_than_at_the_checkpoint(script: Scenery) -> None:
    script.srun("0")
    sruns = script.sruns()
    assert bound(sruns, saved()) == "srun 0 of the script has started since"
    assert bound(sruns, saved(waiting(0), waiting(1))) == "srun 1 of the script has ended since"
    assert bound(sruns, saved(waiting(0, ""))) == "srun 0 of the script has started its step since"
    assert bound(sruns, saved(waiting(0, status=0))) == "srun 0 of the script has started since"
    sruns.close()


def test_a_script_without_sruns(script: Scenery) -> None:
    for sruns in (script.sruns(), Sruns(None, script.step, cast(Any, None))):
        sruns.match(saved())
        assert sruns.inherit(saved()) == {}
        assert bound(sruns, saved(waiting())) == "srun 0 of the script has ended since"
        sruns.close()


def test_an_srun_that_had_ended_ends_again(script: Scenery) -> None:
    """Its stand-in had not read that yet at the boundary."""
    sruns = script.sruns()
    cut = saved(waiting(3, status=256))
    sruns.match(cut)
    inherit = sruns.inherit(cut)
    assert os.read(inherit["pipe:[32]"], 10) == (256).to_bytes(4, "little")
    sruns.close()


@pytest.mark.parametrize(
    ("number", "mode"), [(0, stat.S_IFREG), (0, stat.S_IFIFO), (1, stat.S_IFIFO), (2, stat.S_IFIFO)]
)
def test_what_the_script_handles_itself(script: Scenery, number: int, mode: int) -> None:
    launch, _ = script.srun("0")
    launch.modes = {number: mode}
    with pytest.raises(Bound, match=r"^the script handles input or output of step 0$"):
        script.sruns()


def test_a_pipe_beside_the_streams(script: Scenery) -> None:
    reader, writer = os.pipe()
    script.srun("0", [writer])
    with pytest.raises(Bound, match=rf"^srun 0 of the script holds a pipe of it \(descriptor {writer}\)$"):
        script.sruns()
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("flags", "refused"),
    [(os.O_WRONLY, True), (os.O_RDWR, True), (os.O_WRONLY | os.O_APPEND, False), (os.O_RDONLY, False)],
)
def test_a_file_that_the_script_has_open_too(script: Scenery, tmp_path: Path, flags: int, refused: bool) -> None:
    """Its place in the file would not be that of the srun any more. At the end, and for reading, there is none."""
    with opened(tmp_path / "log") as log, opened(tmp_path / "log", flags) as own:
        script.srun("0", [log])
        script.sruns().close()
        script.processes.append(script.process(own, program="/bin/sleep"))
        if refused:
            with pytest.raises(Bound, match=r"^the script and step 0 write to the same file"):
                script.sruns()
        else:
            script.sruns().close()


def test_the_jobs_own_output_is_shared_by_all(script: Scenery, tmp_path: Path) -> None:
    """It is given to the restored script as it was."""
    with opened(tmp_path / "slurm.out") as out:
        script.step.streams.files.append(OutputHolder("batch/0/1", os.dup(out)))
        script.srun("0", [out])
        script.processes.append(script.process(out, program="/bin/sleep"))
        script.sruns().close()
        script.step.streams.close()


def test_the_stand_ins_come_back(script: Scenery, tmp_path: Path) -> None:
    """An srun writes on where the boundary was, in a file that only it has open."""
    with opened(tmp_path / "log") as log:
        os.write(log, b"0123456789")
        launch, _ = script.srun("0", [log])
        sruns = script.sruns()
        script.processes = [replace(with_place_of_its_own(script, tmp_path / "log", log, 4), ns_pid=104)]
        assert os.lseek(log, 0, os.SEEK_CUR) == 10
        sruns.meet(saved(waiting(0)), 1)
        assert launch.stand_in == script.processes[0].pid
        assert os.lseek(log, 0, os.SEEK_CUR) == 4
        with pytest.raises(Bound, match=r"^the stand-in of srun 0 did not come back$"):
            sruns.meet(saved(waiting(0, pid=999)), 1)
        sruns.close()


def with_place_of_its_own(script: Scenery, path: Path, number: int, place: int) -> Process:
    """A process as CRIU brings it back: under this number, it has the file open anew."""
    kept, again = os.dup(number), os.open(path, os.O_WRONLY)
    os.lseek(again, place, os.SEEK_SET)
    os.dup2(again, number)
    try:
        return script.process(number, program="/bin/sleep")
    finally:
        os.dup2(kept, number)
        os.close(kept)
        os.close(again)


def test_what_the_script_has_started_since_is_forgotten(script: Scenery) -> None:
    for _ in range(3):
        script.srun("0")
    sruns = script.sruns()
    script.script.numbered = 3
    sruns.forget_later(1)
    assert (script.script.numbered, list(script.script.launches)) == (1, [0])
    sruns.close()
