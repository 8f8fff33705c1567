"""A restore by CRIU, with what it does not do by itself, or cannot do safely, before and after."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slurmckpt.capture import (
    attributes,
    criu,
    datagrams,
    failedsockets,
    fileimages,
    listeners,
    peercred,
    resets,
    rlimits,
    socketdirs,
    socketoptions,
    sysvipc,
    timerfds,
)
from slurmckpt.errors import SlurmckptError


async def restore(
    installation: criu.Installation,
    target: criu.Target,
    images: Path,
    hooks: criu.RestoreHooks,
    cpus: Sequence[int] = (),
) -> None:
    """As criu.restore(). cpus: those that Slurm has given to the tasks. Raises Refused and IpcError, too."""
    try:
        await asyncio.to_thread(timerfds.adjust, images)
    except fileimages.ImageError as error:
        raise criu.CriuError(f"the image of the timers cannot be prepared: {error}") from error
    try:
        limits = await asyncio.to_thread(rlimits.read, images)
    except (OSError, ValueError) as error:
        raise criu.CriuError(f"what was noted of the processes' limits cannot be read: {error}") from error
    directories = await asyncio.to_thread(socketdirs.take, target.pod_init, images)

    async def connected() -> None:
        # All that has a name or is shared between processes is there; a failure still ends the restore.
        await asyncio.to_thread(resets.let_through, target.pod_init, images)
        await asyncio.to_thread(directories.close)
        await asyncio.to_thread(sysvipc.mend, target.pod_init, images)
        await asyncio.to_thread(peercred.listen_again, target.pod_init, target.uid, target.gid)
        await asyncio.to_thread(attributes.apply, target.pod_init, cpus, images)
        await asyncio.to_thread(failedsockets.apply, target.pod_init, images)
        await asyncio.to_thread(socketoptions.apply, target.pod_init, images)
        await asyncio.to_thread(datagrams.apply, target.pod_init, images)
        await hooks.connected()

    async def restored() -> None:
        # CRIU does nothing in their name any more. A pod that is gone is the hook's to find out.
        with contextlib.suppress(SlurmckptError):
            real = (target.uid, target.gid) if installation.needs_real_id else None
            await asyncio.to_thread(rlimits.apply, target.pod_init, limits, real)
        await hooks.restored()

    try:
        async with listeners.made(target, images) as own:
            own_hooks = replace(hooks, inherit={**hooks.inherit, **own}, connected=connected, restored=restored)
            await criu.restore(installation, target, images, own_hooks)
    finally:
        await asyncio.to_thread(directories.close)
