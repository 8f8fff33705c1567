"""The two sockets of a job: who may ask what, and how a task comes in."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.coordinator import held, server, sockets
from slurmckpt.coordinator.choice import Skipped
from slurmckpt.coordinator.job import Job
from slurmckpt.coordinator.server import Server
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.task import Hello
from slurmckpt.coordinator.wire import Channel
from slurmckpt.store.lease import LeaseLost
from tests.unit.coordinator.parts import UID, good_payload, memfd, no_descriptor_is_lost, packed, send_raw

JOB_UID = UID if os.geteuid() == 0 else os.getuid()
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other users' processes")


class FakeJob:
    """As much of a job as the server asks for."""

    def __init__(self, run_directory: Path) -> None:
        self.spec = SimpleNamespace(job=SimpleNamespace(job_id=7, user="jane", uid=JOB_UID))
        self.run_directory = run_directory
        self.steps: dict[str, Step] = {}
        self.checkpoint_error: Exception | None = None
        self.stops = 0
        self.outside: list[Hello] = []
        self.inside = False
        self.taken = asyncio.Event()

    def status(self) -> dict[str, Any]:
        return {"job_id": 7, "node": "n1"}

    def holds(self, pid: int) -> bool:
        return self.inside

    async def checkpoint(self) -> SimpleNamespace:
        self.taken.set()
        if self.checkpoint_error is not None:
            raise self.checkpoint_error
        return SimpleNamespace(seq=3, files=[SimpleNamespace(size=5), SimpleNamespace(size=7)], freeze_seconds=0.25)

    async def stop(self) -> None:
        self.stops += 1

    def runs_outside(self, hello: Hello) -> None:
        self.outside.append(hello)

    async def leave_alone(self, step: Step | None, channel: Channel) -> None:
        await channel.send("DIRECT")

    def step_of(self, hello: Hello) -> Step | None:
        step = self.steps.setdefault(hello.step_name, Step.of(hello, hello.step_name))
        return None if step.closed else step


Scene = Callable[[FakeJob], Awaitable[None]]


def serve(run: Path, scene: Scene) -> FakeJob:
    """Play a scene while the job in `run` is served; serve() has returned when this returns."""
    run.mkdir(exist_ok=True)

    async def play() -> FakeJob:
        job = FakeJob(run)
        serving = Server(cast(Job, job), *sockets.bind(run))
        running = asyncio.create_task(serving.serve())
        try:
            await scene(job)
        finally:
            await asyncio.wait_for(serving.end(), 5)
            await asyncio.wait_for(running, 5)
        return job

    with no_descriptor_is_lost():
        return asyncio.run(play())


async def ask(run: Path, line: bytes) -> Any:
    """The answer to one line; None when the connection ends without one."""
    reader, writer = await asyncio.open_unix_connection(str(run / sockets.CONTROL_SOCKET))
    writer.write(line)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    await writer.wait_closed()
    return json.loads(answer) if answer else None


async def ask_as(uid: int, run: Path, line: bytes) -> Any:
    """The answer that a process of another user gets."""

    def child(writer: int) -> None:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(run / sockets.CONTROL_SOCKET))
            control.sendall(line)
            os.write(writer, control.makefile("rb").readline())

    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child(writer)
        finally:
            os._exit(0)
    os.close(writer)
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reader, "rb")
    )
    answer = await asyncio.wait_for(stream.read(), 5)
    transport.close()
    os.waitpid(pid, 0)
    return json.loads(answer)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    # For other users to reach the socket, all directories above must let them pass.
    for directory in [tmp_path, *tmp_path.parents]:
        if directory.stat().st_uid == os.geteuid() and directory.is_relative_to("/tmp/pytest-of-root"):
            directory.chmod(0o711)
    path = tmp_path / "7"
    path.mkdir(mode=0o711)
    return path


def test_the_sockets(run: Path) -> None:
    task_socket, control_socket = sockets.bind(run)
    with task_socket, control_socket:
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in run.iterdir()}
        assert modes == {"task.sock": 0o600, "control.sock": 0o666}
        # A connection waits, although nobody accepts yet.
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as early:
            early.connect(str(run / "task.sock"))
            early.sendall(b"HELLO\0")
        with socket.socket(socket.AF_UNIX) as early:
            early.connect(str(run / "control.sock"))
    again = sockets.bind(run)
    for listener in again:
        listener.close()


def test_status(run: Path) -> None:
    async def scene(job: FakeJob) -> None:
        assert await ask(run, b'{"verb": "status"}\n') == {"job_id": 7, "node": "n1"}

    serve(run, scene)


def test_checkpoint(run: Path) -> None:
    async def scene(job: FakeJob) -> None:
        assert await ask(run, b'{"verb":"checkpoint"}\n') == {"checkpoint": 3, "bytes": 12, "freeze_seconds": 0.25}
        job.checkpoint_error = Skipped("no task of this job runs in a pod")
        assert await ask(run, b'{"verb":"checkpoint"}\n') == {"error": "no task of this job runs in a pod"}
        job.checkpoint_error = LeaseLost("job 7 has a newer incarnation")
        assert await ask(run, b'{"verb":"checkpoint"}\n') == {"error": "job 7 has a newer incarnation"}

    serve(run, scene)


def test_a_process_of_the_job_does_not_wait_for_the_checkpoint(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be captured while it waits. The checkpoint follows when it has ended, or at last after a while."""
    monkeypatch.setattr(server, "_ASKER_SECONDS", 0.05)

    async def scene(job: FakeJob) -> None:
        job.inside = True
        assert await ask(run, b'{"verb":"checkpoint"}\n') == {"requested": True}
        await asyncio.wait_for(job.taken.wait(), 5)

    serve(run, scene)


@pytest.mark.parametrize(
    "line",
    [b"\n", b"status\n", b"[]\n", b"{}\n", b"7\n", b'"status"\n', b"\xff\n", b"[" * 60_000 + b"\n", b"x" * 65_536],
    ids=["empty", "word", "list", "no verb", "number", "text", "bytes", "deep", "long"],
)
def test_what_is_no_request(run: Path, line: bytes) -> None:
    async def scene(job: FakeJob) -> None:
        assert await ask(run, line) == {"error": "a request is one JSON object with a verb: status, checkpoint or stop"}
        assert await ask(run, b'{"verb":"status"}\n') == {"job_id": 7, "node": "n1"}

    serve(run, scene)


@pytest.mark.parametrize("verb", ['"kill"', "null", "[1]", '{"a":1}'])
def test_an_unknown_verb(run: Path, verb: str) -> None:
    async def scene(job: FakeJob) -> None:
        answer = await ask(run, f'{{"verb":{verb}}}\n'.encode())
        assert (
            answer["error"].startswith("verb ") and "is not one of status, checkpoint, stop (root)" in answer["error"]
        )

    serve(run, scene)


def test_a_line_without_end_gets_no_answer(run: Path) -> None:
    async def scene(job: FakeJob) -> None:
        assert await ask(run, b'{"verb":"status"}') is None

    serve(run, scene)


@needs_root
def test_the_jobs_user_may_ask_but_not_stop(run: Path) -> None:
    async def scene(job: FakeJob) -> None:
        assert await ask_as(UID, run, b'{"verb":"status"}\n') == {"job_id": 7, "node": "n1"}
        assert (await ask_as(UID, run, b'{"verb":"checkpoint"}\n'))["checkpoint"] == 3
        answer = await ask_as(UID, run, b'{"verb":"stop"}\n')
        assert answer == {"error": "verb 'stop' is not one of status, checkpoint, stop (root)"}
        assert job.stops == 0

    serve(run, scene)


@needs_root
@pytest.mark.parametrize("verb", [b"status", b"checkpoint", b"stop"])
def test_another_user_may_ask_nothing(run: Path, verb: bytes) -> None:
    async def scene(job: FakeJob) -> None:
        answer = await ask_as(UID + 1, run, b'{"verb":"%s"}\n' % verb)
        assert answer == {"error": "job 7 belongs to jane"}

    assert serve(run, scene).stops == 1


@needs_root
def test_another_user_cannot_keep_a_connection_by_saying_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_STRANGER_SECONDS", 0.05)

    async def scene(job: FakeJob) -> None:
        job.spec.job.uid = UID
        monkeypatch.setattr(Server, "_may_ask", lambda self, uid: False)
        reader, writer = await asyncio.open_unix_connection(str(run / sockets.CONTROL_SOCKET))
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        await writer.wait_closed()

    serve(run, scene)


@needs_root
def test_stop_is_answered_when_all_is_gone(run: Path) -> None:
    async def play() -> None:
        job = FakeJob(run)
        serving = Server(cast(Job, job), *sockets.bind(run))
        running = asyncio.create_task(serving.serve())
        assert await ask(run, b'{"verb":"stop"}\n') == {"stopped": True}
        assert job.stops == 1
        assert not run.exists()
        await asyncio.wait_for(running, 5)

    with no_descriptor_is_lost():
        asyncio.run(play())


def test_serve_returns_even_when_the_end_fails(run: Path) -> None:
    async def play() -> None:
        job = FakeJob(run)

        async def stop() -> None:
            raise OSError("an end that fails")

        job.stop = stop  # type: ignore[method-assign]
        serving = Server(cast(Job, job), *sockets.bind(run))
        running = asyncio.create_task(serving.serve())
        await asyncio.sleep(0)
        with pytest.raises(OSError, match="an end that fails"):
            await serving.end()
        await asyncio.wait_for(running, 5)

    with no_descriptor_is_lost():
        asyncio.run(play())


def test_running_out_of_descriptors_is_not_the_end_of_accepting(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise every later task of the job would wait for an answer for ever."""
    monkeypatch.setattr(server, "_PAUSE_SECONDS", 0.01)

    async def scene(job: FakeJob) -> None:
        loop = asyncio.get_running_loop()
        real, failures = loop.sock_accept, iter([24, 24])

        async def accept(listener: socket.socket) -> Any:
            for number in failures:
                raise OSError(number, os.strerror(number))
            return await real(listener)

        monkeypatch.setattr(loop, "sock_accept", accept)
        # Those that wait already are served by the old one; the next ones meet the failures.
        for _ in range(3):
            assert await ask(run, b'{"verb":"status"}\n') == {"job_id": 7, "node": "n1"}

    serve(run, scene)
    assert caplog.text.count("a connection cannot be accepted: [Errno 24] Too many open files") == 2


# ---- task.sock ----

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


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited for 5 s")


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
        await asyncio.wait_for(job.steps["0"].complete.wait(), 5)
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
