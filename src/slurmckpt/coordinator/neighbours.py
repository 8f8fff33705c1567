"""What other jobs have left on this node: the last who look, when an epilog came to nothing and the coordinator hangs.

Each coordinator does so when it starts and from time to time. A job whose coordinator is dead may well run on, so Slurm
is asked; a coordinator that answers sees to its own end (orphan).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path

from slurmckpt.config import Settings
from slurmckpt.coordinator import orphan, spec
from slurmckpt.coordinator.remains import Incarnation
from slurmckpt.coordinator.sockets import CONTROL_SOCKET
from slurmckpt.coordinator.spec import JobSpec, SpecError
from slurmckpt.errors import SlurmError
from slurmckpt.slurm.port import SlurmPort

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 600.0
# A job of that age is not just starting: what Slurm says of it is true. No epilog takes that long either.
_YOUNG_SECONDS = 60.0
_ANSWER_SECONDS = 5.0


async def look_after(settings: Settings, own: int, slurm: SlurmPort) -> None:
    """Remove what jobs other than `own` have left here, until cancelled."""
    while True:
        for directory in sorted(settings.paths.run.glob("[0-9]*")):
            if directory.name.isdigit() and int(directory.name) != own:
                try:
                    await _look_at(settings, int(directory.name), slurm)
                except OSError as error:
                    log.warning("%s: %s", directory, error.strerror or error)
        await asyncio.sleep(_AGAIN_SECONDS)


async def _look_at(settings: Settings, job_id: int, slurm: SlurmPort) -> None:
    """Remove what this job has here if it has left the node and nobody answers. Raises OSError."""
    try:
        remains = Incarnation(settings, job_id)
    except OSError:
        return  # it is just ending
    try:
        noted = remains.directory / "spec.json"
        try:
            started, job = noted.stat().st_mtime, spec.load(noted)
        except (OSError, SpecError):
            return  # its prolog is at work, or its end
        if time.time() - started < _YOUNG_SECONDS or await _answers(remains.directory / CONTROL_SOCKET):
            return
        if await _has_left(job, slurm) and remains.here:
            log.warning("job %d: it has left this node, and its coordinator is dead or hangs; it is cleaned up", job_id)
            await asyncio.to_thread(remains.remove)
    finally:
        remains.close()


async def _has_left(job: JobSpec, slurm: SlurmPort) -> bool:
    try:
        return not await orphan.is_here(job, slurm)
    except SlurmError:
        return False  # it does not answer, which says nothing


async def _answers(control: Path) -> bool:
    """Whether a coordinator serves there."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_unix_connection(str(control)), _ANSWER_SECONDS)
    except (OSError, asyncio.TimeoutError):
        return False
    try:
        writer.write(json.dumps({"verb": "status"}).encode() + b"\n")
        return await asyncio.wait_for(reader.readline(), _ANSWER_SECONDS) != b""
    except (OSError, ValueError, asyncio.TimeoutError):
        return False
    finally:
        writer.close()
