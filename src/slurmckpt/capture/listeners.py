"""Unix sockets with a name in a directory that their user may change: made anew with the user's rights at a restore.

Those in a directory that can be taken from the user meanwhile (socketdirs.py) CRIU makes, as all others. Each is made
by a program of its own in the pod's namespaces, as the job's user, and inherited by CRIU, whose image does not name it
any more (unixnames.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from slurmckpt.capture import criu, socketdirs, unixnames
from slurmckpt.capture.fileimages import ImageError
from slurmckpt.capture.inspect.peers import only_root_changes
from slurmckpt.capture.unixnames import Listener
from slurmckpt.errors import Refused, one_line

_SECONDS = 30.0
_SHOWN = 200
_REPLY_BYTES = 64
# asm-generic/socket.h: beyond the limits that the node has for its users; so CRIU restores them, too.
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_TYPES = {socket.SOCK_STREAM: "stream", socket.SOCK_SEQPACKET: "seqpacket"}


def check(images: Path, init_pid: int, uid: int) -> None:
    """Look whether these sockets, just dumped, can be made anew. Raises unixnames.Waiting, Refused, OSError."""

    def exposed(directory: str) -> bool:
        taken = socketdirs.find(init_pid, directory, uid) is not None
        return not taken and not only_root_changes(init_pid, directory)

    try:
        unixnames.find(images, exposed)
    except unixnames.Waiting:
        raise
    except ImageError as error:
        raise Refused(str(error)) from error


@contextlib.asynccontextmanager
async def made(target: criu.Target, images: Path) -> AsyncIterator[dict[str, int]]:
    """Make them, and take their names out of the images; the sockets by CRIU's keys, closed afterwards.

    To be used while the directories that can be taken from the user are (socketdirs.take). Raises Refused, OSError.
    """
    try:
        wanted = await asyncio.to_thread(
            unixnames.take, images, lambda directory: not only_root_changes(target.pod_init, directory)
        )
    except ImageError as error:
        raise Refused(str(error)) from error
    with contextlib.ExitStack() as stack:
        yield {one.key: stack.enter_context(await _make(target, one)).fileno() for one in wanted}


async def _make(target: criu.Target, wanted: Listener) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        process = await asyncio.create_subprocess_exec(
            *_command(target, wanted, theirs.fileno()),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()], env={},
        )  # fmt: skip
        try:
            _, said = await asyncio.wait_for(process.communicate(), _SECONDS)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            if isinstance(error, asyncio.TimeoutError):
                raise Refused(f"the unix socket {one_line(wanted.name, _SHOWN)} could not be made in time") from error
            raise
        if process.returncode:
            raise Refused(one_line(said.decode("utf-8", "replace").strip(), _SHOWN) or "a unix socket cannot be made")
        made = _receive(ours)
    _prepare(made, wanted)
    return made


def _command(target: criu.Target, wanted: Listener, reply: int) -> list[str]:
    command = [str(target.enter), "--pid", str(target.pod_init), "--uid", str(target.uid), "--gid", str(target.gid)]
    command += ["--groups", ",".join(map(str, target.groups)), "--", str(target.enter.parent / "listener")]
    command += ["--reply", str(reply)]
    command += ["--type", _TYPES[socket.SocketKind(wanted.type)], "--mode", f"{wanted.mode:o}"]
    if wanted.backlog is not None:
        command += ["--backlog", str(wanted.backlog)]
    if wanted.directory:
        command += ["--directory", wanted.directory]
    command += ["--deleted"] * wanted.deleted + ["--nonblock"] * wanted.nonblocking
    return [*command, "--", wanted.name]


def _receive(channel: socket.socket) -> socket.socket:
    """What the program has sent, which was the user's while it ran: nothing but a unix socket is taken."""
    channel.setblocking(False)
    _, descriptors, _, _ = socket.recv_fds(channel, _REPLY_BYTES, 1)
    sockets = []
    with contextlib.ExitStack() as stack:
        for descriptor in descriptors:
            stack.callback(os.close, descriptor)
        for descriptor in descriptors:
            try:
                sockets.append(socket.socket(fileno=os.dup(descriptor)))
            except OSError:
                continue
    if len(sockets) != 1 or sockets[0].family != socket.AF_UNIX:
        for one in sockets:
            one.close()
        raise Refused("a unix socket could not be made: no socket came back")
    return sockets[0]


def _prepare(made: socket.socket, wanted: Listener) -> None:
    # The kernel doubles what it is given.
    made.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, wanted.sndbuf // 2)
    made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, wanted.rcvbuf // 2)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, int(wanted.passes_credentials))
