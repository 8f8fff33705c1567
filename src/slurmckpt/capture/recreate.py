"""A restore by CRIU, with what it does not do by itself, or cannot do safely, before and after."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from slurmckpt.capture import criu, socketdirs, sysvipc


async def restore(installation: criu.Installation, target: criu.Target, images: Path, hooks: criu.RestoreHooks) -> None:
    """As criu.restore(). Raises Refused and IpcError, too."""
    directories = await asyncio.to_thread(socketdirs.take, target.pod_init, images)

    async def connected() -> None:
        # All that has a name or is shared between processes is there; a failure still ends the restore.
        await asyncio.to_thread(directories.close)
        await asyncio.to_thread(sysvipc.mend, target.pod_init, images)
        await hooks.connected()

    try:
        await criu.restore(installation, target, images, replace(hooks, connected=connected))
    finally:
        await asyncio.to_thread(directories.close)
