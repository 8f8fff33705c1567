"""The two sockets of a job: task.sock for plugin and shims, control.sock for the commands of its user and of root."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import socket
import struct
from collections.abc import Coroutine
from typing import Any

from slurmckpt.coordinator.choice import Skipped
from slurmckpt.coordinator.job import Job
from slurmckpt.coordinator.patience import reassure
from slurmckpt.coordinator.proc import ended
from slurmckpt.coordinator.task import parse_hello, parse_start
from slurmckpt.coordinator.wire import Channel, WireError
from slurmckpt.store.lease import LeaseLost

log = logging.getLogger(__name__)

_MAX_LINE = 64 * 1024
_LAST_WORDS_SECONDS = 2.0
_PAUSE_SECONDS = 0.5
_REQUEST_SECONDS = 60.0
_ASKER_SECONDS = 30.0
_STRANGER_SECONDS = 1.0


class Server:
    """Serves one job until it is told to end."""

    def __init__(self, job: Job, task_socket: socket.socket, control_socket: socket.socket) -> None:
        self._job = job
        self._task_socket = task_socket
        self._control_socket = control_socket
        self._conversations: set[asyncio.Task[None]] = set()
        self._requested: set[asyncio.Task[None]] = set()
        self._reassurances: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()

    async def serve(self) -> None:
        """Accept until a stop is asked for; every process and file of the job is gone from this node then."""
        acceptors = [
            asyncio.create_task(self._accept(self._task_socket, self._task)),
            asyncio.create_task(self._accept(self._control_socket, self._control)),
        ]
        try:
            await self._stopped.wait()
        finally:
            for acceptor in (*acceptors, *self._reassurances):
                acceptor.cancel()
            # Until then the loop watches the sockets.
            await asyncio.gather(*acceptors, return_exceptions=True)
            self._task_socket.close()
            self._control_socket.close()
            if self._conversations:
                await asyncio.wait(self._conversations, timeout=_LAST_WORDS_SECONDS)

    async def end(self) -> None:
        """End the job's pods, remove what it has on this node, and let serve() return."""
        try:
            await self._job.stop()
            # The directory goes before anybody is told that the job is gone: its next incarnation may start right here.
            shutil.rmtree(self._job.run_directory, ignore_errors=True)
        finally:
            self._stopped.set()

    async def _accept(self, listener: socket.socket, converse: Any) -> None:
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                # No descriptors left, most likely. Whoever waits in the queue must be served when there are some again.
                log.error("a connection cannot be accepted: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            _keep(converse(connection), self._conversations)

    async def _task(self, connection: socket.socket) -> None:
        """The beginning of a task: HELLO from the plugin, START from the shim. Then the connection is the step's."""
        channel = Channel(connection)
        step = hello = None
        try:
            pid, uid = channel.peer()
            if uid != 0:
                raise WireError(f"a connection of user id {uid}; only the plugin, as root, may connect")
            message = await channel.receive()
            if message is None:
                return
            with contextlib.closing(message):
                hello = parse_hello(message)
                job = self._job.spec.job
                if (hello.job, hello.uid) != (job.job_id, job.uid):
                    raise WireError(f"a task of job {hello.job} of user id {hello.uid}")
                if hello.off:
                    self._job.runs_outside(hello)
                    return
                step = self._job.step_of(hello)
                if step is not None:
                    step.take_anchor(message)
            start = await channel.receive()
            if start is None:
                raise WireError(f"task {hello.task} of step {hello.step_name} ended before it started")
            if start.verb == "TERMINAL":
                start.close()
                await self._job.leave_alone(step, channel)
                return
            task = parse_start(hello, pid, channel, start)
            if step is None or step.closed:
                await task.run_directly()
                return
            step.add(task)
            _keep(reassure(task.channel), self._reassurances)
            channel = None  # type: ignore[assignment]
        except (WireError, OSError) as error:
            log.warning("task socket: %s", error)
        finally:
            if channel is not None:
                channel.close()
                if step is not None and hello is not None:
                    step.lose(hello.task)

    async def _control(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        with contextlib.closing(connection):
            try:
                pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                # Everybody can connect, and must not keep the connection by saying nothing.
                patience = _REQUEST_SECONDS if self._may_ask(uid) else _STRANGER_SECONDS
                line = await asyncio.wait_for(_read_line(connection), patience)
                if line:
                    answer = await self._answer(pid, uid, line)
                    await loop.sock_sendall(connection, json.dumps(answer).encode() + b"\n")
            except (OSError, asyncio.TimeoutError) as error:
                log.info("control socket: %s", error)

    def _when_gone(self, asker: int) -> None:
        """Take a checkpoint once the process that has asked for it has ended."""

        async def take() -> None:
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(ended(asker), _ASKER_SECONDS)
            with contextlib.suppress(Skipped, LeaseLost):
                await self._job.checkpoint()  # says itself why there is none

        taking = asyncio.create_task(take())
        self._requested.add(taking)
        taking.add_done_callback(self._requested.discard)

    def _may_ask(self, uid: int) -> bool:
        return uid in (0, self._job.spec.job.uid)

    async def _answer(self, pid: int, uid: int, line: bytes) -> dict[str, Any]:
        if not self._may_ask(uid):
            return {"error": f"job {self._job.spec.job.job_id} belongs to {self._job.spec.job.user}"}
        try:
            verb = json.loads(line)["verb"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return {"error": "a request is one JSON object with a verb: status, checkpoint or stop"}
        if verb == "status":
            return self._job.status()
        if verb == "checkpoint":
            if self._job.holds(pid):
                # Whoever waits here, connected to us, would be in the image.
                self._when_gone(pid)
                return {"requested": True}
            try:
                manifest = await self._job.checkpoint()
            except (Skipped, LeaseLost) as error:
                return {"error": str(error)}
            size = sum(file.size for file in manifest.files)
            return {"checkpoint": manifest.seq, "bytes": size, "freeze_seconds": manifest.freeze_seconds}
        if verb == "stop" and uid == 0:
            await self.end()
            return {"stopped": True}
        return {"error": f"verb {str(verb)[:40]!r} is not one of status, checkpoint, stop (root)"}


def _keep(talk: Coroutine[Any, Any, None], talks: set[asyncio.Task[None]]) -> None:
    task = asyncio.create_task(talk)
    talks.add(task)
    task.add_done_callback(talks.discard)


async def _read_line(connection: socket.socket) -> bytes:
    """One line, or as much of it as is accepted; nothing when the connection ends before it does."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _MAX_LINE:
        piece = await asyncio.get_running_loop().sock_recv(connection, _MAX_LINE)
        if not piece:
            return b""
        line += piece
    return line
