"""What comes in through task.sock."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from slurmckpt.coordinator import held, sockets
from slurmckpt.coordinator.step import Step
from tests.unit.awaiting import until
from tests.unit.coordinator.parts import UID, good_payload, memfd, packed, send_raw
from tests.unit.coordinator.serving import FakeJob, needs_root, serve


@pytest.fixture
def run(passable: Path) -> Path:
    path = passable / "7"
    path.mkdir(mode=0o711)
    return path


HELLO = {"v": 1, "job": 7, "step": 0, "task": 0, "gtask": 0, "ntasks": 1, "nnodes": 1, "uid": UID, "gid": UID}


class Shim:
    """The connection of a task: HELLO by the plugin, then whatever the shim sends."""

    def __init__(self, run: Path, *descriptors: int, **changes: object) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(run / sockets.TASK_SOCKET))
        send_raw(self.socket, packed("HELLO", **(HELLO | changes)), descriptors)

    def start(self) -> None:
        descriptors = [good_payload([1]), memfd(bytes(held.SIZE)), os.open("/dev/null", os.O_RDWR)]
        send_raw(self.socket, packed("START", v=1), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    async def answer(self) -> bytes:
        """The next packet; nothing at the end of the connection, be it with what we sent unread."""
        try:
            return await asyncio.to_thread(self.socket.recv, 4096)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self.socket.close()


@needs_root
def test_a_task_comes_in(run: Path) -> None:
    async def scene(job: FakeJob) -> None:
        shim = Shim(run)
        shim.start()
        await until(lambda: "0" in job.steps and 0 in job.steps["0"].tasks)
        step = job.steps["0"]
        assert step.complete.is_set()
        task = step.tasks[0]
        assert (task.shim_pid, list(task.descriptors)) == (os.getpid(), [1])
        # The connection is the step's now: the server has let it go.
        await task.say("hello")
        assert await shim.answer() == b"SAY\0text=hello\0"
        task.close()
        shim.close()

    serve(run, scene)


def is_closed(anchor: socket.socket) -> bool:
    """Whether the coordinator has let go of an anchor."""
    anchor.setblocking(False)
    try:
        return anchor.recv(1) == b""
    except BlockingIOError:
        return False


@needs_root
def test_the_anchor_of_a_step(run: Path) -> None:
    """It is kept for the pods that will be made, and goes when the task that it stands below does."""

    async def scene(job: FakeJob) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
        anchors = [anchor for anchor, _ in pairs]
        shims = [
            Shim(run, pairs[0][1].fileno(), ntasks=2),
            Shim(run, pairs[1][1].fileno(), ntasks=2, task=1),  # one is enough
            Shim(run, pairs[2][1].fileno(), step=1),
        ]
        for _, given in pairs:
            given.close()
        await until(lambda: set(job.steps) == {"0", "1"} and is_closed(anchors[1]))
        assert not is_closed(anchors[0]) and not is_closed(anchors[2])
        step = job.steps["0"]
        assert step.anchor is not None
        await step.anchor.send("POD")
        assert anchors[0].recv(10) == b"POD\0"
        shims[0].start()
        await until(lambda: 0 in step.tasks)
        shims[2].close()
        await until(lambda: is_closed(anchors[2]))
        assert not is_closed(anchors[0])
        step.let_anchor_go()
        await until(lambda: is_closed(anchors[0]))
        step.tasks[0].close()
        for shim in shims:
            shim.close()
        for anchor in anchors:
            anchor.close()

    serve(run, scene)


@needs_root
def test_a_task_with_a_terminal_is_left_alone(run: Path) -> None:
    async def scene(job: FakeJob) -> None:
        shim = Shim(run)
        shim.socket.sendall(packed("TERMINAL", v=1))
        assert await shim.answer() == b"DIRECT\0"
        assert await shim.answer() == b""
        shim.close()
        # The step does not wait for it.
        assert job.steps["0"].complete.is_set() and job.steps["0"].tasks == {}

    serve(run, scene)


@needs_root
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"job": 8}, f"a task of job 8 of user id {UID}"),
        ({"uid": 0}, "a task of job 7 of user id 0"),
        ({"v": 2}, "a plugin of protocol 2"),
        ({"task": 1}, "HELLO of task 1 of 1"),
    ],
)
def test_a_hello_that_does_not_fit_ends_the_connection(
    run: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, object], complaint: str
) -> None:
    async def scene(job: FakeJob) -> None:
        shim = Shim(run, **changes)
        # The end of the connection before RUN makes the shim execute the task itself.
        assert await shim.answer() == b""
        shim.close()
        assert job.steps == {}

    serve(run, scene)
    assert complaint in caplog.text


@needs_root
def test_a_hostile_start_ends_the_connection_and_the_step_does_not_wait_for_it(run: Path) -> None:
    async def scene(job: FakeJob) -> None:
        shim = Shim(run)
        send_raw(shim.socket, packed("START", v=1), [0, 1])
        assert await shim.answer() == b""
        shim.close()
        assert job.steps["0"].complete.is_set()
        assert job.steps["0"].tasks == {}

    serve(run, scene)


@needs_root
def test_a_task_that_ends_before_it_is_ready_is_not_waited_for(run: Path) -> None:
    async def scene(job: FakeJob) -> None:
        first, second = Shim(run, ntasks=2), Shim(run, ntasks=2, task=1)
        second.start()
        await until(lambda: "0" in job.steps and 1 in job.steps["0"].tasks)
        assert not job.steps["0"].complete.is_set()
        first.close()
        await asyncio.wait_for(job.steps["0"].complete.wait(), 60)
        (task,) = await job.steps["0"].gather()
        assert task.hello.task == 1
        task.close()
        second.close()

    serve(run, scene)


@needs_root
def test_a_task_that_comes_too_late_runs_directly(run: Path) -> None:
    async def scene(job: FakeJob) -> None:
        job.steps["0"] = step = Step("0", 1, 1)
        step.closed = True
        shim = Shim(run)
        shim.start()
        assert await shim.answer() == b"DIRECT\0"
        assert await shim.answer() == b""
        shim.close()
        assert step.tasks == {}

    serve(run, scene)


@needs_root
def test_only_root_may_announce_a_task(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmckpt.coordinator.wire.Channel.peer", lambda self: (1, UID))

    async def scene(job: FakeJob) -> None:
        shim = Shim(run)
        shim.start()
        assert await shim.answer() == b""
        shim.close()
        assert job.steps == {}

    serve(run, scene)


@needs_root
def test_a_task_that_its_user_wants_unwrapped_is_only_noted(run: Path) -> None:
    async def scene(job: FakeJob) -> None:
        shim = Shim(run, off=1, launch=3)
        assert await shim.answer() == b""
        shim.close()
        assert [(hello.launch, hello.off) for hello in job.outside] == [(3, True)]
        assert job.steps == {}

    serve(run, scene)


@needs_root
@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("0", 0),
        ("999999999", 999999999),
        ("", None),
        ("1234567890", None),
        ("-1", None),
        ("1 ", None),
        ("\u0663", None),
    ],
)
def test_the_mark_has_come_through_the_users_environment(run: Path, said: str, number: int | None) -> None:
    async def scene(job: FakeJob) -> None:
        shim = Shim(run, off=1, launch=said)
        assert await shim.answer() == b""
        shim.close()
        assert [hello.launch for hello in job.outside] == [number]

    serve(run, scene)
