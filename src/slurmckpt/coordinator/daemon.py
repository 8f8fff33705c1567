"""The coordinator's process: started by the prolog, outlives it, ends at the epilog."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket

from slurmckpt import faults
from slurmckpt.config import Settings
from slurmckpt.coordinator import neighbours, orphan
from slurmckpt.coordinator.job import Job
from slurmckpt.coordinator.server import Server
from slurmckpt.coordinator.spec import JobSpec
from slurmckpt.coordinator.waitingprolog import WaitingProlog
from slurmckpt.errors import SlurmckptError
from slurmckpt.slurm.port import SlurmPort
from slurmckpt.slurm.select import select

log = logging.getLogger(__name__)

_SETTLE_SECONDS = 120.0


def run(
    spec: JobSpec,
    settings: Settings,
    declined: str,
    task_socket: socket.socket,
    control_socket: socket.socket,
    prolog: WaitingProlog | None = None,
) -> None:
    """Serve one job. Returns when the job has left this node and the store is in order.

    prolog: what waits until this job has the lease.

    A SIGTERM ends this process as any other signal does, and leaves the job alone: it may come from a service manager,
    when slurmd is stopped or the node goes down, and the job is Slurm's to end.
    """
    _raise_descriptor_limit()
    # Not asyncio.run(): at the end it waits for every thread, also for one that hangs in a store that does not answer.
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(_serve(spec, settings, declined, task_socket, control_socket, prolog))
    finally:
        loop.close()


async def _serve(
    spec: JobSpec,
    settings: Settings,
    declined: str,
    task_socket: socket.socket,
    control_socket: socket.socket,
    prolog: WaitingProlog | None,
) -> None:
    faults.at("coordinator.begin")
    slurm = _slurm()
    job = Job(spec, settings, slurm, declined)
    server = Server(job, task_socket, control_socket)
    ending: list[asyncio.Task[None]] = []

    def terminate() -> None:
        if not ending:
            ending.append(asyncio.create_task(server.end()))

    async def end_when_superseded() -> None:
        await job.superseded.wait()
        terminate()

    async def end_when_left_behind() -> None:
        if slurm is not None:
            await orphan.left_behind(spec, job.steps, slurm)
            terminate()

    works = [job.open(prolog), end_when_superseded(), end_when_left_behind()]
    if slurm is not None:
        works.append(neighbours.look_after(settings, spec.job.job_id, slurm))
    beside = [asyncio.create_task(work) for work in works]
    await server.serve()
    for each in beside:
        each.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    try:
        await asyncio.wait_for(job.settle(), _SETTLE_SECONDS)
    except asyncio.TimeoutError:
        log.error("job %d: the store does not answer, what it holds of the job stays", spec.job.job_id)


def _raise_descriptor_limit() -> None:
    """As many descriptors as the hard limit allows: those of all tasks of a step pass through this process at once."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _slurm() -> SlurmPort | None:
    try:
        return select()
    except SlurmckptError as error:
        log.warning("Slurm cannot be asked about jobs: %s", error)
        return None
