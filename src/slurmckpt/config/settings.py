"""The site's settings as they are when they have been read: frozen, every key with its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from slurmckpt.filerules import FileRule, Policy
from slurmckpt.units import DAY, OFF, Interval

# What --checkpoint-recover and recover.events name; spank/values.c has the same list.
RECOVER_EVENTS = ("nodefail", "preempt", "crash", "hang", "timelimit")

Rule = Literal["equal", "at-least", "informative"]

_GIB = 2**30


@dataclass(frozen=True)
class Schedule:
    """When checkpoints are taken. Times in seconds, fractions of 1."""

    interval: Interval = OFF
    min_interval: float = 1.0
    mtbf: float = 7.0 * DAY
    jitter: float = 0.05
    max_overhead: float = 0.05


@dataclass(frozen=True)
class Store:
    """Where committed checkpoints live and how many are kept. lease_watch: seconds."""

    path: Path = Path("/var/spool/slurmckpt")
    keep: int = 2
    compression: Literal["zstd", "none"] = "zstd"
    level: int = 1
    retries: int = 3
    patience: float = 300.0
    lease_watch: float = 10.0
    record_days: int = 30
    image_days: int = 7


@dataclass(frozen=True)
class Staging:
    """The node-local place where an image is written first. reserve: bytes that must stay free."""

    path: Path = Path("/var/lib/slurmckpt")
    reserve: int = _GIB


@dataclass(frozen=True)
class Capture:
    """How a pod is captured. timeout in seconds, limits in bytes; criu is an absolute path or a name to look up."""

    criu: str = "criu"
    timeout: float = 600.0
    ghost_limit: int = _GIB
    max_output: int = _GIB
    io_uring: Literal["deny", "allow"] = "deny"
    real_id: Literal["auto", "never"] = "auto"


@dataclass(frozen=True)
class Files:
    """What happens to the files that a job has open. Limits in bytes.

    policy: for those that are open for writing. rules: exceptions from it; the first that fits counts. max_read,
    max_read_each: of files that are only read. carry: directories that come along with the job.
    """

    policy: Policy = "auto"
    rules: tuple[FileRule, ...] = ()
    max_save: int = _GIB
    max_read: int = 256 << 20
    max_read_each: int = 64 << 20
    carry: tuple[str, ...] = ()
    max_carry: int = _GIB


@dataclass(frozen=True)
class Gate:
    """The boundary gate of NCCL ranks. patience: seconds of one attempt to bring them to a boundary."""

    enabled: Literal["auto", "always", "off"] = "auto"
    patience: float = 10.0
    attempts: int = 3


@dataclass(frozen=True)
class Gpu:
    """How GPU ranks are captured. lock_timeout: seconds. profile: of NCCL, see coordinator/gpu_profile.py."""

    capture: Literal["auto", "off"] = "auto"
    profile: Literal["auto", "sockets", "job", "none"] = "auto"
    lock_timeout: float = 10.0
    lock_tries: int = 5


@dataclass(frozen=True)
class Restore:
    """How often a restore is tried, and the way out of a restored pod's network (pasta; empty: none).

    patience: seconds until all steps of a restored script must have started again.
    """

    attempts: int = 3
    pasta: str = "pasta"
    patience: float = 300.0


@dataclass(frozen=True)
class Recover:
    """What jobs are recovered from, and how. Times in seconds.

    exit_codes: statuses that count as a crash beside a death by signal; the default is what a shell makes of a program
    that died of ILL, ABRT, BUS, FPE, KILL or SEGV (128 + signal). attempts: restores in place of one incarnation.
    """

    events: frozenset[str] = frozenset({"nodefail", "preempt", "crash", "timelimit"})
    exit_codes: frozenset[int] = frozenset({132, 134, 135, 136, 137, 139})
    attempts: int = 3
    hang_after: float = 1800.0
    margin: float = 60.0
    look_every: float = 30.0


@dataclass(frozen=True)
class Hooks:
    """Shell commands that every job runs in its pod, as its user; empty: none. timeout: seconds that each may take."""

    pre_checkpoint: str = ""
    post_checkpoint: str = ""
    post_restore: str = ""
    timeout: float = 30.0


@dataclass(frozen=True)
class Requeue:
    """What the requeue hook does to a job."""

    node_feature: bool = True


@dataclass(frozen=True)
class Fingerprint:
    """rules: key pattern (fnmatch) to rule, overriding the defaults. site: the site's own facts about this node."""

    rules: Mapping[str, Rule] = field(default_factory=dict)
    site: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Log:
    """Where the coordinator, hooks and errors are logged."""

    path: Path = Path("/var/log/slurmckpt.log")
    level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True)
class Paths:
    """Where the parts of the installation are found."""

    libexec: Path = Path("/usr/libexec/slurmckpt")
    run: Path = Path("/run/slurmckpt")
    site_key: Path = Path("/etc/slurmckpt/site.key")


@dataclass(frozen=True)
class Settings:
    """All settings of one site."""

    schedule: Schedule = Schedule()
    store: Store = Store()
    staging: Staging = Staging()
    capture: Capture = Capture()
    gpu: Gpu = Gpu()
    files: Files = Files()
    gate: Gate = Gate()
    restore: Restore = Restore()
    recover: Recover = field(default_factory=Recover)
    hooks: Hooks = Hooks()
    requeue: Requeue = Requeue()
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    log: Log = Log()
    paths: Paths = Paths()
