"""One `criu swrk` in a pod: started by `enter`, spoken with, ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmckpt.capture import criu_rpc_pb2 as rpc
from slurmckpt.capture.criu.installation import PATH, CriuError, Installation

log = logging.getLogger(__name__)

_MAX_PACKET = 1 << 20
_MAX_SAID = 4096
_UNDO_SECONDS = 20.0
_BEAT_SECONDS = 2.0  # pod/guard.c gives up a coordinator that is silent ten times as long


@dataclass(frozen=True)
class Target:
    """The pod that CRIU enters. pod_init: pid on this node. cgroups: files to join, so that a restore is born there.

    uid, gid, groups: of the job's user.
    """

    enter: Path
    pod_init: int
    uid: int
    gid: int
    cgroups: Sequence[Path] = ()
    groups: Sequence[int] = ()


@dataclass
class Worker:
    """One `criu swrk`. channel: connected to it. said: what it and `enter` wrote to stderr, once they have ended."""

    channel: socket.socket
    said: str = ""


@contextlib.asynccontextmanager
async def swrk(
    installation: Installation, target: Target, inherit: Mapping[str, int], restores: bool = False
) -> AsyncIterator[Worker]:
    """A connected `criu swrk` in the pod. It ends when its socket is closed, and a dump under way is undone then.

    `enter` sees to it that it ends, too, when this process dies, stops or hangs (pod/guard.h).
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    beat, heart = os.pipe()
    os.set_blocking(heart, False)
    # From outside CRIU takes the IPC namespace for the tree's own, and dumps what is in it.
    command = [str(target.enter), "--pid", str(target.pod_init), "--keep-ipc"]
    for path in target.cgroups:
        command += ["--cgroup", str(path)]
    if installation.needs_real_id:
        command += ["--real-id", f"{target.uid}:{target.gid}"]
    command += ["--guard", f"{theirs.fileno()}:{beat}", *(["--restores"] if restores else [])]
    command += ["--", installation.program, "swrk", str(theirs.fileno())]
    # An empty directory of the installation: CRIU's own CUDA plugin must not interfere.
    environment = {
        "PATH": PATH,
        "CRIU_LIBS_DIR": str(target.enter.parent / "criu-plugins"),
        # pod/plugin.c
        "SLURMCKPT_USER": f"{target.uid}:{target.gid}",
        "SLURMCKPT_GROUPS": ",".join(map(str, target.groups)),
    }
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno(), beat, *sorted(set(inherit.values()))],
                env=environment,
            )
        except OSError as error:
            raise CriuError(f"{command[0]} cannot be executed: {error.strerror}") from error
        theirs.close()
        worker = Worker(ours)
        assert process.stderr is not None
        listening = asyncio.create_task(_last_words(process.stderr))
        beating = asyncio.create_task(_beat(heart))
        try:
            yield worker
        finally:
            ours.close()
            await _end(process)
            beating.cancel()
            worker.said = await listening
    finally:
        ours.close()
        theirs.close()
        os.close(beat)
        os.close(heart)


async def _beat(heart: int) -> None:
    """Show `enter` that the event loop turns."""
    while True:
        # A full pipe has enough of it; one without a reader needs none.
        with contextlib.suppress(OSError):
            os.write(heart, b".")
        await asyncio.sleep(_BEAT_SECONDS)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Wait until a CRIU whose socket is closed has undone what it did; end one that hangs, so that its ranks run."""
    for urge in (signal.SIGTERM, signal.SIGKILL):
        try:
            await asyncio.wait_for(process.wait(), _UNDO_SECONDS)
            return
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                # At SIGTERM `enter` ends CRIU, by force if need be, and mends what it leaves. It may have been stopped.
                process.send_signal(urge)
                process.send_signal(signal.SIGCONT)
    try:
        await asyncio.wait_for(process.wait(), _UNDO_SECONDS)
    except asyncio.TimeoutError:
        log.error("enter (process %d) does not end", process.pid)


async def _last_words(stream: asyncio.StreamReader) -> str:
    """The end of what comes, read as it comes: a full pipe would stop the writer."""
    said = b""
    while chunk := await stream.read(_MAX_SAID):
        said = (said + chunk)[-_MAX_SAID:]
    return said.decode("utf-8", "replace").strip()


async def converse(
    channel: socket.socket, request: rpc.criu_req, notified: Callable[[str], Awaitable[rpc.criu_req]]
) -> rpc.criu_resp | None:
    """Send the request, answer notifications, give the final response; None when CRIU ends without one.

    A failing hook is answered with "no", and its error is raised at the end.
    """
    loop = asyncio.get_running_loop()
    failure: BaseException | None = None
    question = request
    while True:
        try:
            await loop.sock_sendall(channel, question.SerializeToString())
            packet = await loop.sock_recv(channel, _MAX_PACKET)
        except ConnectionError:
            packet = b""
        response = rpc.criu_resp.FromString(packet) if packet else None
        if response is None or response.type != rpc.NOTIFY:
            if failure is not None:
                raise failure
            return response
        try:
            question = await notified(response.notify.script)
        except (Exception, asyncio.CancelledError) as error:
            failure = error
            question = rpc.criu_req(type=rpc.NOTIFY, notify_success=False)
