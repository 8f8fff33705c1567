"""Where stand-ins for srun come in: each hands over what srun needs, and gets two pipes to wait with."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket

from slurmckpt.coordinator import payload as payloads
from slurmckpt.coordinator.notices import PREFIX
from slurmckpt.coordinator.patience import reassured
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.script.script import Script
from slurmckpt.coordinator.wire import Channel, Message, WireError
from slurmckpt.errors import SlurmckptError, one_line

log = logging.getLogger(__name__)

SOCKET = "launch.sock"
_BACKLOG = 512
_HAND_OVER_SECONDS = 30
_PAUSE_SECONDS = 0.5


class Desk:
    """Serves the stand-ins of one batch pod. To be opened before the pod is built."""

    def __init__(self, script: Script, pod: Pod) -> None:
        self._script = script
        self._pod = pod
        self._listener = _listen(script)
        self._conversations: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Serve nobody any more."""
        work = [self._accepting, *self._conversations]
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        self._listener.close()

    async def _accept(self) -> None:
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            except OSError as error:
                log.error("an srun of the script cannot be accepted: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            conversation = asyncio.create_task(self._welcome(Channel(connection)))
            self._conversations.add(conversation)
            conversation.add_done_callback(self._conversations.discard)

    async def _welcome(self, channel: Channel) -> None:
        self._script.arriving += 1
        try:
            # Who may not even connect must not keep captures waiting with a word that never comes.
            pid = self._peer(channel)
            message = await asyncio.wait_for(channel.receive(), _HAND_OVER_SECONDS)
            if message is not None:
                await self._launch(channel, message, pid)
        except (SlurmckptError, OSError, asyncio.TimeoutError) as error:
            reason = str(error) or "no word from its stand-in"
            log.warning("srun of the script: %s", reason)
            with contextlib.suppress(ConnectionError):
                await channel.send("SAY", [("text", PREFIX + one_line(f"this srun is not captured: {reason}"))])
                await channel.send("DIRECT")
        finally:
            channel.close()
            self._script.arriving -= 1

    def _peer(self, channel: Channel) -> int:
        """The peer's pid, when its user is the pod's. Raises WireError."""
        pid, uid = channel.peer()
        if uid != self._pod.uid:
            raise WireError(f"a connection of user id {uid}")
        return pid

    def _check_pod(self, pid: int) -> None:
        """Raises WireError, OSError when the peer is no process of the batch pod."""
        if os.readlink(f"/proc/{pid}/ns/pid") != os.readlink(f"/proc/{self._pod.init_pid}/ns/pid"):
            raise WireError(f"a connection of process {pid}, which is not in the pod of the batch script")

    async def _launch(self, channel: Channel, message: Message, pid: int) -> None:
        try:
            # Not before it is read: a connection that is closed with something unread loses our answer as well.
            self._check_pod(pid)
            if message.verb != "LAUNCH" or message.number("v") != 1 or not message.descriptors:
                raise WireError(f"{message.verb} where LAUNCH with descriptors is expected")
            handed, *descriptors = message.descriptors
            payload = payloads.from_memfd(handed)
            if len(payload.numbers("fds")) != len(descriptors):
                raise WireError(f"LAUNCH with {len(descriptors)} descriptors for fds={payload.header.get('fds')!r:.80}")
            async with reassured(channel):
                launch, pipes = await self._script.launch(payload, descriptors, pid)
        finally:
            message.close()
        try:
            await channel.send("LAUNCHED", [], [pipes.signals_write, pipes.status_read])
        except ConnectionError:
            # Killed meanwhile, and so will be its srun: nobody holds the pipe of the signals then.
            log.info("the stand-in of srun %d is gone", launch.pid)
        finally:
            pipes.close()
        await _closed(channel)


async def _closed(channel: Channel) -> None:
    """Until the stand-in has closed its end it cannot be captured."""
    with contextlib.suppress(WireError, asyncio.TimeoutError):
        message = await asyncio.wait_for(channel.receive(), _HAND_OVER_SECONDS)
        if message is not None:
            message.close()


def _listen(script: Script) -> socket.socket:
    """Raises OSError."""
    path = script.directory / SOCKET
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(str(path))
        # The pod's processes are the user's; who else connects is refused.
        path.chmod(0o666)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
