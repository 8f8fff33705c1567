"""The backend over pyslurm, where the site has it: nodes and updates without starting a process.

pyslurm (25.11) cannot say all that we need. Its Job.state keeps only one word of the state, so PENDING+COMPLETING,
the state of a job in requeue, reads COMPLETING; it has no preference (--prefer); a setter given "" changes nothing,
so a constraint cannot be removed; and requeueing by raw id would reach a whole array. Those requests go to scontrol.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from slurmckpt.errors import SlurmError
from slurmckpt.slurm.port import JobInfo, JobLine, NodeInfo, PartitionInfo
from slurmckpt.slurm.scontrol import Scontrol

Result = TypeVar("Result")


class Pyslurm:
    """SlurmPort over pyslurm's classes, with scontrol for what they lack."""

    def __init__(self, scontrol: Scontrol) -> None:
        """Raises ImportError (or what pyslurm raises while it loads libslurm) when pyslurm cannot be used."""
        self._pyslurm: Any = importlib.import_module("pyslurm")
        self._scontrol = scontrol

    @property
    def release(self) -> str:
        """The Slurm release that this pyslurm was built for, such as "25.11"."""
        # 26.05 is 26.5 in the version of a Python package
        major, minor = str(self._pyslurm.__version__).split(".")[:2]
        return f"{int(major)}.{int(minor):02d}"

    async def job(self, job_id: int) -> JobInfo:
        """The job with this raw id; NoSuchJobError when there is none."""
        return await self._scontrol.job(job_id)

    async def array(self, array_id: int) -> list[JobInfo]:
        """All jobs with this number: the tasks of that array that stand for themselves, or the one job with this id."""
        return await self._scontrol.array(array_id)

    async def job_lines(self) -> list[JobLine]:
        """All jobs that the controller knows."""
        return await self._scontrol.job_lines()

    async def partitions(self) -> list[PartitionInfo]:
        """All partitions."""
        return await self._scontrol.partitions()

    async def node(self, name: str) -> NodeInfo:
        """The node with this NodeName; SlurmError when there is none."""
        found = _node(await self._call(f"node {name}", lambda: self._pyslurm.Node.load(name)))
        if found.name != name:
            # slurmctld also answers to a NodeHostName (seen with 25.11).
            raise SlurmError(f"Slurm knows no node {name}")
        return found

    async def nodes(self) -> list[NodeInfo]:
        """All nodes of the cluster."""
        found = await self._call("nodes", lambda: list(self._pyslurm.Nodes.load().values()))
        return [_node(node) for node in found]

    async def set_job_features(self, job_id: int, text: str, prefer: str | None = None) -> None:
        """Replace the constraint of a pending job ("" removes it), and its preference when one is given."""
        await self._scontrol.set_job_features(job_id, text, prefer)

    async def set_admin_comment(self, job_id: int, text: str) -> None:
        """Replace the job's AdminComment. Only root and SlurmUser may."""
        # A job is known to pyslurm by its number only, and that of an array's last task is that of the whole array.
        if not text or (await self._scontrol.job(job_id)).address != str(job_id):
            await self._scontrol.set_admin_comment(job_id, text)
            return

        def change() -> None:
            self._pyslurm.Job(job_id).modify(self._pyslurm.JobSubmitDescription(admin_comment=text))

        await self._call(f"AdminComment of job {job_id}", change)

    async def requeue(self, job_id: int) -> None:
        """End the job here and queue it again under its id. SlurmError when Slurm does not allow it."""
        await self._scontrol.requeue(job_id)

    async def grace_time(self, partition: str) -> float:
        """Seconds that a preempted job of this partition has left; a QOS can give it another time."""
        return await self._scontrol.grace_time(partition)

    async def set_node_features(self, name: str, available: Sequence[str], active: Sequence[str]) -> None:
        """Replace the node's features. `active` must be a subset of `available`. Only root and SlurmUser may."""
        if not available or not active:
            await self._scontrol.set_node_features(name, available, active)
            return

        def change() -> None:
            wanted = self._pyslurm.Node(available_features=list(available), active_features=list(active))
            self._pyslurm.Node(name).modify(wanted)

        await self._call(f"features of node {name}", change)

    async def version(self) -> tuple[int, int, int]:
        """The version of the cluster's controller, as (26, 5, 5)."""
        return await self._scontrol.version()

    async def config(self) -> dict[str, str]:
        """The controller's configuration as `scontrol show config` prints it; "(null)" is given as ""."""
        return await self._scontrol.config()

    async def _call(self, what: str, request: Callable[[], Result]) -> Result:
        """Run a blocking request of pyslurm beside the event loop."""
        try:
            return await asyncio.to_thread(request)
        except self._pyslurm.RPCError as error:
            raise SlurmError(f"pyslurm: {what}: {error}") from error


def _node(node: Any) -> NodeInfo:
    return NodeInfo(
        name=str(node.name),
        hostname=str(node.hostname or ""),
        state=frozenset(str(node.state).upper().split("+")),
        features=tuple(node.available_features or ()),
        active_features=tuple(node.active_features or ()),
        partitions=frozenset(node.partitions or ()),
    )
