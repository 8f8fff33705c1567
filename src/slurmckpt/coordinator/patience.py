"""Whoever waits for an answer of the coordinator hears that it is still to come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from slurmckpt.coordinator.wire import Channel

_REASSURE_SECONDS = 5.0  # a shim waits six times as long (pod/shim.c), a stand-in twelve times (pod/srun.c)


async def reassure(channel: Channel) -> None:
    """Say so now and then; who hears nothing goes on by itself.

    Returns when the channel is closed here, or the other end is gone.
    """
    with contextlib.suppress(ConnectionError):
        while True:
            await asyncio.sleep(_REASSURE_SECONDS)
            await channel.send("WAIT")


@contextlib.asynccontextmanager
async def reassured(channel: Channel) -> AsyncIterator[None]:
    """While this lasts; nothing comes in between what is sent afterwards."""
    reassuring = asyncio.create_task(reassure(channel))
    try:
        yield
    finally:
        reassuring.cancel()
        await asyncio.wait([reassuring])
