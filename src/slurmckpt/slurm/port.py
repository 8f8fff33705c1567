"""What slurmckpt asks of Slurm, whatever the backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

# A node in one of these states will not run a job that is queued now. POWERED_DOWN and PLANNED are absent on purpose:
# Slurm starts the first and gives out the second. Names as in node_states and node_state_flags of Slurm's
# src/common/slurm_protocol_defs.c, which --json and the API share.
_UNUSABLE = frozenset(
    {"DOWN", "DRAIN", "ERROR", "EXTERNAL", "FAIL", "FUTURE", "INVALID", "INVALID_REG", "NOT_RESPONDING"}
    | {"REBOOT_ISSUED", "UNKNOWN"}
)


@dataclass(frozen=True)
class JobInfo:
    """One job as Slurm's controller sees it.

    job_id: the raw id, one per array task. address: the name under which an update reaches this job and no other
    (`291_2` for an array task whose raw id is also the id of its array).
    state: base state and flags, as in {"PENDING", "COMPLETING"}. features, prefer: constraint expressions, "" for none.
    While a job is not pending, Slurm shows in `features` the expression that was used and in `prefer` nothing.
    nodes: names, empty while pending. node_count: for a job that is ending, only the nodes that have not finished.
    requeue: whether it may be requeued; expedite: --requeue=expedite. name: the user's text.
    array_id, array_task: for a task of an array. het_id: for a component of a heterogeneous job; 0 otherwise.
    batch: submitted by sbatch. preempt_time: when its preemption, and its grace time, began; Slurm forgets it when the
    requeued job is ready to start. start_time, end_time (its time limit, or the end of its grace time), preempt_time:
    seconds since 1970 by the controller's clock, 0.0 for none. time_limit: minutes, None when it is unlimited or not
    set.
    """

    job_id: int
    address: str
    state: frozenset[str]
    user_id: int
    features: str
    prefer: str
    nodes: tuple[str, ...]
    node_count: int
    partition: str
    restart_count: int
    admin_comment: str
    requeue: bool
    name: str = ""
    array_id: int = 0
    array_task: int | None = None
    het_id: int = 0
    batch: bool = True
    expedite: bool = False
    start_time: float = 0.0
    end_time: float = 0.0
    preempt_time: float = 0.0
    time_limit: int | None = None

    @property
    def array(self) -> str:
        """`12_3` for a task of an array, "" for any other job."""
        return "" if self.array_task is None else f"{self.array_id}_{self.array_task}"

    @property
    def partitions(self) -> frozenset[str]:
        """The partitions that the job may start in."""
        return frozenset(name for name in self.partition.split(",") if name)

    @property
    def pending(self) -> bool:
        """Whether the job waits to be started; also true in the epilog of a job that is being requeued."""
        return "PENDING" in self.state


@dataclass(frozen=True)
class JobLine:
    """One job in a list of all. array: as JobInfo.array. state: one word, as squeue's %T: a flag such as COMPLETING is
    shown instead of the base state.
    """

    job_id: int
    array: str
    state: str
    name: str


@dataclass(frozen=True)
class NodeInfo:
    """One node as Slurm's controller sees it. hostname is the NodeHostName, which may be shared by several nodes."""

    name: str
    hostname: str
    state: frozenset[str]
    features: tuple[str, ...]
    active_features: tuple[str, ...]
    partitions: frozenset[str]

    @property
    def usable(self) -> bool:
        """Whether a job that is queued now can be expected to start here."""
        return not self.state & _UNUSABLE


@dataclass(frozen=True)
class PartitionInfo:
    """One partition. preempt_mode: `REQUEUE`, `CANCEL`, ..., "" when Slurm does not tell. grace_time: seconds."""

    name: str
    preempt_mode: str
    grace_time: int


class SlurmPort(Protocol):
    """Slurm's controller. Every method raises SlurmError with one line when Slurm refuses or does not answer."""

    async def job(self, job_id: int) -> JobInfo:
        """The job with this raw id; NoSuchJobError when there is none."""
        ...

    async def array(self, array_id: int) -> list[JobInfo]:
        """All jobs with this number: the tasks of that array that stand for themselves, or the one job with this id.

        SlurmError when there is none.
        """
        ...

    async def job_lines(self) -> list[JobLine]:
        """All jobs that the controller knows and the caller may see, ended ones that are not forgotten yet included."""
        ...

    async def partitions(self) -> list[PartitionInfo]:
        """All partitions that the caller may see."""
        ...

    async def node(self, name: str) -> NodeInfo:
        """The node with this NodeName; SlurmError when there is none."""
        ...

    async def nodes(self) -> list[NodeInfo]:
        """All nodes of the cluster."""
        ...

    async def set_job_features(self, job_id: int, text: str, prefer: str | None = None) -> None:
        """Replace the constraint of a pending job ("" removes it), and its preference when one is given."""
        ...

    async def set_admin_comment(self, job_id: int, text: str) -> None:
        """Replace the job's AdminComment. Only root and SlurmUser may."""
        ...

    async def requeue(self, job_id: int) -> None:
        """End the job here and queue it again under its id. SlurmError when Slurm does not allow it."""
        ...

    async def grace_time(self, partition: str) -> float:
        """Seconds that a preempted job of this partition has left; a QOS can give it another time."""
        ...

    async def set_node_features(self, name: str, available: Sequence[str], active: Sequence[str]) -> None:
        """Replace the node's features. `active` must be a subset of `available`. Only root and SlurmUser may."""
        ...

    async def version(self) -> tuple[int, int, int]:
        """The version of the cluster's controller, as (26, 5, 5)."""
        ...

    async def config(self) -> dict[str, str]:
        """The controller's configuration as `scontrol show config` prints it; "(null)" is given as ""."""
        ...
