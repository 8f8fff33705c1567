"""The two sockets of a job: who may ask what, and how a task comes in."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from slurmckpt.coordinator import server, sockets
from slurmckpt.coordinator.choice import Skipped
from slurmckpt.coordinator.job import Job
from slurmckpt.coordinator.server import Server
from slurmckpt.store.lease import LeaseLost
from tests.unit.coordinator.parts import UID, no_descriptor_is_lost
from tests.unit.coordinator.serving import FakeJob, needs_root, serve


async def ask(run: Path, line: bytes) -> Any:
    """The answer to one line; None when the connection ends without one."""
    reader, writer = await asyncio.open_unix_connection(str(run / sockets.CONTROL_SOCKET))
    writer.write(line)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.readline(), 60)
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
    answer = await asyncio.wait_for(stream.read(), 60)
    transport.close()
    os.waitpid(pid, 0)
    return json.loads(answer)


@pytest.fixture
def run(passable: Path) -> Path:
    path = passable / "7"
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
        await asyncio.wait_for(job.taken.wait(), 60)

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
        assert await asyncio.wait_for(reader.read(), 60) == b""
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
        await asyncio.wait_for(running, 60)

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
        await asyncio.wait_for(running, 60)

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
