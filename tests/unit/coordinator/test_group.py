"""Who takes part in a cut, and its choreography, with a CRIU that only calls back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurmckpt.capture import criu, sysvipc
from slurmckpt.capture.inspect.descriptors import Writing
from slurmckpt.capture.preflight import Connection, OpenFile, PodScan
from slurmckpt.config import Files
from slurmckpt.coordinator import freeze, group
from slurmckpt.coordinator.choice import Choice, Doubtful, Skipped, Unsettled
from slurmckpt.coordinator.files.rules import Rules
from slurmckpt.coordinator.group import Captured, Tools, capture
from slurmckpt.coordinator.pod import Pod, TaskState
from slurmckpt.coordinator.pod_init import PodSettings
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.streams import OutputHolder
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.manifest import OutputFile
from tests.unit.coordinator.parts import GID, UID, no_descriptor_is_lost, without_doubts


class StillPod(Pod):
    """A pod with one task that answers SYNC at once."""

    def __init__(self, step: str) -> None:
        super().__init__(step, UID, GID, [], PodSettings(Path("/"), Path("/"), Path("/"), True), leader_pid=100)
        self.init_pid, self.status_key = os.getpid(), "pipe:[1]"
        self.tasks[0] = TaskState(0, {0: "file[1:2]", 1: "pipe:[3]"}, pid=101)
        self.synced = 0
        self.at_sync: Callable[[], None] = lambda: None

    async def sync(self) -> None:
        self.synced += 1
        self.at_sync()


def running(name: str) -> Step:
    return Step(name, 1, 1, pod=StillPod(name), argv_digest=name * 64)


def print_into_pipe(step: Step) -> None:
    """Give the step output that has to be drained."""
    reading, writing = os.pipe()
    step.streams.pipes.append(os.open(f"/proc/self/fd/{writing}", os.O_PATH))
    os.close(writing)
    os.close(reading)


def ended(name: str) -> Step:
    step = running(name)
    assert step.pod is not None
    step.pod.tasks[0].status = 0
    return step


# CRIU's image of no open files: its two magics.
NO_FILES = struct.pack("<II", 0x54564319, 0x56303138)


class Criu:
    """Stands in for criu.dump(). events: what happened, in order, with the step's name."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.keys: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.after_thaw: Callable[[], None] = lambda: None

    async def dump(
        self, installation: object, target: object, leader: int, images: Path, limits: object, hooks: criu.DumpHooks
    ) -> None:
        name = images.parent.name
        hooks.starting()
        await asyncio.sleep(0.01 if name == "1" else 0)
        if "stop" in self.fails and name == "1":
            raise self.fails["stop"]
        self.events.append(f"{name} stopped")
        self.keys += await hooks.frozen()
        self.events.append(f"{name} dumps")
        (images / "core.img").write_text("image")
        (images / "files.img").write_bytes(NO_FILES)
        if "write" in self.fails and name == "1":
            raise self.fails["write"]
        await hooks.dumped()
        self.events.append(f"{name} runs")
        self.after_thaw()
        await asyncio.sleep(0.01)


# A file that everybody may look at stands for what the ranks write.
FILE = os.stat("/etc/passwd")
SCAN = PodScan(
    [],
    [],
    [OpenFile("/etc/passwd", 12, FILE.st_mode, os.O_WRONLY, 1, 3, FILE.st_dev, FILE.st_ino, Writing.APPENDED)],
    ["10.0.0.1"],
    [],
    [],
    [],
)


class Stage:
    """A node on which cuts are taken."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.criu = Criu()
        self.scan = SCAN
        self.drained: tuple[list[int], list[int]] = ([], [])
        self.settles = SimpleNamespace(ok=True, reason="")
        self.shm = top / "shm"
        self.shm.mkdir()
        installation = criu.Installation("/usr/sbin/criu", "4.2.1", False)
        self.tools = Tools(
            installation,
            criu.Limits(600, 1 << 30),
            Path("/enter"),
            top / "staging",
            0,
            self.shm,
            1 << 20,
            Rules(Files("truncate"), UID, "", top / "staging"),
        )
        monkeypatch.setattr(criu, "dump", self.criu.dump)
        monkeypatch.setattr(freeze, "look", self._scan)
        monkeypatch.setattr(group, "look", self._scan)
        monkeypatch.setattr(freeze, "drain", self._drain)
        monkeypatch.setattr(group, "choose", self._choose)
        monkeypatch.setattr(sysvipc, "look", lambda init_pid: sysvipc.Objects())

    @staticmethod
    def _choose(steps: list[Step], script: None) -> Choice:
        return Choice([step for step in steps if step.running])

    def _scan(self, *_: object) -> PodScan:
        return self.scan

    async def _drain(self, pipes: Sequence[int], carriers: Sequence[int], patience: float, *more: Any) -> Any:
        self.drained = (list(pipes), list(carriers))
        self.criu.events.append("drained")
        return self.settles

    def capture(self, steps: Sequence[Step], files: UserFiles, seq: int = 4) -> Captured:
        with no_descriptor_is_lost():
            return asyncio.run(capture(steps, None, seq, self.tools, files, without_doubts()))

    def skipped(self, steps: Sequence[Step], files: UserFiles) -> str:
        with pytest.raises(Skipped) as raised:
            self.capture(steps, files)
        # Nothing of it is left in staging.
        assert not self.tools.staging.exists() or os.listdir(self.tools.staging) == []
        return str(raised.value)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def test_a_process_that_ends_while_it_is_looked_at(
    stage: Stage, user_files: UserFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names no file of /proc, and a moment later the look may succeed."""

    def look(*_: object) -> PodScan:
        raise FileNotFoundError(2, "No such file or directory", "/proc/6774/net/fib_trie")

    monkeypatch.setattr("slurmckpt.coordinator.group.look", look)
    with pytest.raises(Unsettled, match=r"^a process of the job ended while it was looked at$"):
        stage.capture([running("0")], user_files)


def test_nothing_is_dumped_before_all_stand_and_nothing_runs_before_all_is_written(
    stage: Stage, user_files: UserFiles
) -> None:
    steps = [running("0"), running("1"), running("2")]
    print_into_pipe(steps[0])
    stage.capture(steps, user_files)
    events = stage.criu.events
    assert sorted(events[:3]) == ["0 stopped", "1 stopped", "2 stopped"]
    assert sorted(event for event in events[3:7]) == ["0 dumps", "1 dumps", "2 dumps", "drained"]
    assert sorted(events[7:]) == ["0 runs", "1 runs", "2 runs"]
    assert [step.pod.synced for step in steps if isinstance(step.pod, StillPod)] == [2, 2, 2]


@pytest.mark.parametrize("sync", [1, 2], ids=["before the dump", "during the dump"])
def test_a_step_that_is_being_suspended_is_not_captured(stage: Stage, user_files: UserFiles, sync: int) -> None:
    """Its tasks have got SIGTSTP: in an image they would be stopped for ever."""
    step = running("0")
    assert isinstance(step.pod, StillPod)
    pod = step.pod

    def stops() -> None:
        if pod.synced == sync:
            pod._note_signal(0, signal.SIGTSTP)

    pod.at_sync = stops
    with pytest.raises(Skipped, match=r"^the job is being suspended$"):
        stage.capture([step], user_files)
    assert not (stage.tools.staging / "4").exists()
    # Slurm has let it go on, and this is a job like any other.
    pod._note_signal(0, signal.SIGCONT)
    pod.at_sync = lambda: None
    assert stage.capture([step], user_files).steps


def test_what_goes_into_the_manifest(stage: Stage, user_files: UserFiles) -> None:
    captured = stage.capture([running("0")], user_files)
    (found,) = captured.steps
    assert (found.step, found.directory, found.leader_pid, found.status_pipe) == ("0", "0", 100, "pipe:[1]")
    assert (found.ntasks, found.argv_digest, found.uid, found.gid) == (1, "0" * 64, UID, GID)
    assert (found.criu_version, found.addresses, found.shm) == ("4.2.1", ["10.0.0.1"], False)
    # Permission bits only: that is what a manifest takes.
    (file,) = found.open_files
    # Measured when everything had arrived.
    assert (file.path, file.size, file.mode) == ("/etc/passwd", FILE.st_size, stat.S_IMODE(FILE.st_mode))
    assert (file.policy, file.inode, file.modified) == ("truncate", str(FILE.st_ino), FILE.st_mtime_ns)
    (task,) = found.tasks
    assert (task.index, task.pid, task.exited, task.status) == (0, 101, False, 0)
    assert task.descriptors == {"0": "file[1:2]", "1": "pipe:[3]"}
    assert captured.directory == stage.tools.staging / "4"
    assert 0 < captured.freeze_seconds <= captured.capture_seconds < 60
    # CRIU is told of files only: pipes it recognises by itself.
    assert stage.criu.keys == ["file[1:2]"]


def test_a_task_that_ends_right_after_the_thaw_is_alive_in_the_image(stage: Stage, user_files: UserFiles) -> None:
    step = running("0")
    assert step.pod is not None
    state = step.pod.tasks[0]

    def ends() -> None:
        state.status = 0

    stage.criu.after_thaw = ends
    (found,) = stage.capture([step], user_files).steps
    assert (found.tasks[0].exited, found.tasks[0].pid) == (False, 101)


def test_a_task_that_had_ended_before_is_ended_in_the_image(stage: Stage, user_files: UserFiles) -> None:
    step = running("0")
    assert isinstance(step.pod, StillPod)
    state = step.pod.tasks[1] = TaskState(1, {}, pid=102)

    def ends() -> None:
        state.status = 9

    step.pod.at_sync = ends
    (found,) = stage.capture([step], user_files).steps
    assert [(task.exited, task.status) for task in found.tasks] == [(False, 0), (True, 9)]


def test_all_tasks_end_while_they_are_stopped(stage: Stage, user_files: UserFiles) -> None:
    step = running("0")
    assert isinstance(step.pod, StillPod)
    state = step.pod.tasks[0]

    def ends() -> None:
        state.status = 0

    step.pod.at_sync = ends
    assert stage.skipped([step, running("1")], user_files) == "the tasks of step 0 have ended"


@pytest.mark.parametrize("when", ["stop", "write"])
def test_one_dump_that_fails_ends_the_cut_with_its_own_reason(stage: Stage, user_files: UserFiles, when: str) -> None:
    stage.criu.fails[when] = criu.CriuError("process 101 uses io_uring")
    assert stage.skipped([running("0"), running("1"), running("2")], user_files) == "process 101 uses io_uring"
    assert [event for event in stage.criu.events if event.endswith("runs")] == []


@pytest.mark.parametrize(
    "error, kind",
    [
        (criu.CriuError("CRIU: Unable to detach from 4711: No such process"), Doubtful),
        (criu.CriuMoment("a connection was just being made"), Doubtful),
        (OSError(5, "Input/output error"), Doubtful),
        (criu.CriuDied("CRIU refused the dump: it ended without an answer"), Skipped),
    ],
)
def test_a_dump_that_fails_may_be_worth_another_one(
    stage: Stage, user_files: UserFiles, error: Exception, kind: type[Skipped]
) -> None:
    """What CRIU met may have been a moment's; who has killed it does so again."""
    stage.criu.fails["stop"] = error
    with pytest.raises(Skipped) as raised:
        stage.capture([running("0"), running("1")], user_files)
    assert type(raised.value) is kind
    assert getattr(raised.value, "is_moment", False) == isinstance(error, criu.CriuMoment)


@pytest.mark.parametrize(
    "error",
    [
        criu.CriuError("CRIU refused the dump: it ended without an answer"),
        FileNotFoundError(2, "No such file or directory", "/proc/4711/ns/net"),
    ],
)
def test_a_step_that_ends_under_us_is_no_refusal(stage: Stage, user_files: UserFiles, error: Exception) -> None:
    """CRIU runs in its pod, and ends with it. A script of many short steps must be captured all the same."""
    stage.criu.fails["stop"] = error
    step = running("1")
    pod = step.pod
    assert isinstance(pod, StillPod)

    def ends() -> None:
        pod.tasks[0].status = 0

    pod.at_sync = ends
    with pytest.raises(Unsettled, match=r"^the tasks of step 1 have ended$"):
        stage.capture([running("0"), step], user_files)


def test_an_error_of_the_disk_is_a_reason_too(stage: Stage, user_files: UserFiles) -> None:
    stage.criu.fails["write"] = OSError(28, "No space left on device")
    assert stage.skipped([running("0"), running("1")], user_files) == "[Errno 28] No space left on device"


def test_output_that_does_not_settle(stage: Stage, user_files: UserFiles) -> None:
    stage.settles = SimpleNamespace(ok=False, reason="3 bytes of output are still in a pipe (pipe:[7])")
    step = running("0")
    print_into_pipe(step)
    assert stage.skipped([step], user_files) == (
        "output on its way did not settle (3 bytes of output are still in a pipe (pipe:[7])): a later checkpoint will"
        " do when it is read"
    )


def test_what_the_look_before_refuses_stops_no_rank(stage: Stage, user_files: UserFiles) -> None:
    stage.scan = PodScan([], ["a", "b", "c", "d"], [], [], [], [], [])
    assert stage.skipped([running("0")], user_files) == "a; b; c"
    assert stage.criu.events == []


def test_a_connection_between_two_pods_stops_no_rank(stage: Stage, user_files: UserFiles) -> None:
    ends = [Connection("10.0.0.1:1", "10.0.0.1:2", 9, "a", 7, 1), Connection("10.0.0.1:2", "10.0.0.1:1", 9, "a", 8, 1)]
    stage.scan = PodScan([], [], [], [], [], ends, [])
    assert "connections between the steps of a job are restored only together with its batch script" in stage.skipped(
        [running("0"), running("1")], user_files
    )
    assert stage.criu.events == []


def test_a_full_disk_stops_no_rank(stage: Stage, user_files: UserFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    stage.tools = Tools(**{**vars(stage.tools), "reserve": 2_000_000})
    assert stage.skipped([running("0")], user_files) == (
        f"the staging disk has 1.0 MB free at {stage.tools.staging}; the image needs up to 0 B and 2.0 MB"
        " must stay free (staging.reserve)"
    )
    assert stage.criu.events == []


def test_the_shared_memory_is_saved_before_anything_runs_again(stage: Stage, user_files: UserFiles) -> None:
    (stage.shm / "torch_1").write_text("at the boundary")

    def change() -> None:
        (stage.shm / "torch_1").write_text("after")

    stage.criu.after_thaw = change
    captured = stage.capture([running("0")], user_files)
    assert captured.steps[0].shm is True
    assert b"at the boundary" in (captured.directory / "shm.tar").read_bytes()


def test_the_output_of_a_step_that_ends_during_the_capture_is_saved_all_the_same(
    stage: Stage, user_files: UserFiles, home: Path
) -> None:
    """Its descriptors are closed by the step; their numbers may belong to another file already."""
    out, other = home / "out", home / "other"
    out.write_text("the step's output")
    other.write_text("something else entirely")
    step = running("0")
    step.streams.files.append(OutputHolder("0/0/1", os.open(out, os.O_WRONLY | os.O_APPEND)))
    if os.geteuid() == 0:
        os.chown(out, UID, GID)
    opened: list[int] = []

    def ends() -> None:
        if step.streams.files:
            step.streams.close()
            opened.append(os.open(other, os.O_RDONLY))

    stage.criu.after_thaw = ends

    async def scene() -> Captured:
        return await capture([step], None, 4, stage.tools, user_files, without_doubts())

    captured = asyncio.run(scene())
    os.close(opened[0])
    assert captured.outputs == [OutputFile(str(out), 17, "0", {"0/0/1": 0})]
    assert (captured.directory / "output" / "0").read_text() == "the step's output"


def test_a_cut_that_is_cancelled_leaves_nothing(stage: Stage, user_files: UserFiles) -> None:
    async def scene() -> None:
        async def never(*_: object) -> None:
            await asyncio.Event().wait()

        step = running("0")
        assert step.pod is not None
        step.pod.sync = never  # type: ignore[method-assign]
        taking = asyncio.create_task(capture([step], None, 4, stage.tools, user_files, without_doubts()))
        while not stage.criu.events and not taking.done():
            await asyncio.sleep(0.01)
        taking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(taking, 60)
        assert taking.cancelled()

    with no_descriptor_is_lost():
        asyncio.run(scene())
    assert os.listdir(stage.tools.staging) == []
