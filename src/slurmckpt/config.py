"""slurmckpt.toml: the site's settings, checked once and then fixed.

Every key and its default is documented in etc/slurmckpt.toml; a test holds that file and this one together.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from slurmckpt.errors import ConfigError
from slurmckpt.filerules import (
    ACCEPTED_DIRECTORIES,
    POLICIES,
    FileRule,
    Policy,
    check_directory,
    check_pattern,
)
from slurmckpt.hookcommands import parse_command
from slurmckpt.tables import Table
from slurmckpt.units import DAY, OFF, Interval

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PATH = Path("/etc/slurmckpt/slurmckpt.toml")

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
    """What happens to the files that a job has open for writing. Limits in bytes.

    rules: exceptions from `policy`; the first that fits counts. carry: directories that come along with the job.
    """

    policy: Policy = "auto"
    rules: tuple[FileRule, ...] = ()
    max_save: int = _GIB
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


def load(path: Path = DEFAULT_PATH) -> Settings:
    """The settings in the TOML file at `path`; all defaults when there is no such file.

    Raises ConfigError with one line (file, key, value, what is accepted) on anything that is not understood.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return Settings()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from error
    return _settings(Table(path, "", values))


def _settings(top: Table) -> Settings:
    settings = Settings(
        schedule=_schedule(top.section("schedule")),
        store=_store(top.section("store")),
        staging=_staging(top.section("staging")),
        capture=_capture(top.section("capture")),
        gpu=_gpu(top.section("gpu")),
        files=_files(top.section("files")),
        gate=_gate(top.section("gate")),
        restore=_restore(top.section("restore")),
        recover=_recover(top.section("recover")),
        hooks=_hooks(top.section("hooks")),
        requeue=_requeue(top.section("requeue")),
        fingerprint=_fingerprint(top.section("fingerprint")),
        log=_log(top.section("log")),
        paths=_paths(top.section("paths")),
    )
    top.done()
    return settings


def _schedule(table: Table) -> Schedule:
    default = Schedule()
    section = Schedule(
        interval=table.interval("interval", default.interval),
        min_interval=table.seconds("min_interval", default.min_interval, 1, 365 * DAY),
        mtbf=table.seconds("mtbf", default.mtbf, 60, 36500 * DAY),
        jitter=table.number("jitter", default.jitter, 0, 0.5),
        max_overhead=table.number("max_overhead", default.max_overhead, 0.0001, 1),
    )
    table.done()
    return section


def _store(table: Table) -> Store:
    default = Store()
    section = Store(
        path=table.path("path", default.path),
        keep=table.whole("keep", default.keep, 1, 1000),
        compression=table.word("compression", default.compression, ("zstd", "none")),
        level=table.whole("level", default.level, 1, 19),
        retries=table.whole("retries", default.retries, 0, 100),
        patience=table.seconds("patience", default.patience, 1, 7 * DAY),
        lease_watch=table.seconds("lease_watch", default.lease_watch, 1, DAY),
        record_days=table.whole("record_days", default.record_days, 0, 36500),
        image_days=table.whole("image_days", default.image_days, 0, 36500),
    )
    table.done()
    return section


def _staging(table: Table) -> Staging:
    default = Staging()
    section = Staging(path=table.path("path", default.path), reserve=table.size("reserve", default.reserve))
    table.done()
    return section


def _capture(table: Table) -> Capture:
    default = Capture()
    section = Capture(
        criu=table.program("criu", default.criu),
        timeout=table.seconds("timeout", default.timeout, 1, 7 * DAY),
        ghost_limit=table.size("ghost_limit", default.ghost_limit),
        max_output=table.size("max_output", default.max_output),
        io_uring=table.word("io_uring", default.io_uring, ("deny", "allow")),
        real_id=table.word("real_id", default.real_id, ("auto", "never")),
    )
    table.done()
    return section


def _files(table: Table) -> Files:
    default = Files()
    rules = []
    for rule in table.tables("rules", '{ path = "~/run.log", policy = "truncate" }'):
        rules.append(FileRule(rule.parsed("path", check_pattern), rule.word("policy", "auto", POLICIES)))
        rule.done()
    section = Files(
        policy=table.word("policy", default.policy, POLICIES),
        rules=tuple(rules),
        max_save=table.size("max_save", default.max_save),
        carry=table.texts("carry", check_directory, ACCEPTED_DIRECTORIES),
        max_carry=table.size("max_carry", default.max_carry),
    )
    table.done()
    return section


def _gate(table: Table) -> Gate:
    default = Gate()
    section = Gate(
        enabled=table.word("enabled", default.enabled, ("auto", "always", "off")),
        patience=table.seconds("patience", default.patience, 1, 3600),
        attempts=table.whole("attempts", default.attempts, 1, 100),
    )
    table.done()
    return section


def _gpu(table: Table) -> Gpu:
    default = Gpu()
    section = Gpu(
        capture=table.word("capture", default.capture, ("auto", "off")),
        profile=table.word("profile", default.profile, ("auto", "sockets", "job", "none")),
        lock_timeout=table.seconds("lock_timeout", default.lock_timeout, 1, DAY),
        lock_tries=table.whole("lock_tries", default.lock_tries, 1, 1000),
    )
    table.done()
    return section


def _restore(table: Table) -> Restore:
    default = Restore()
    section = Restore(
        attempts=table.whole("attempts", default.attempts, 0, 100),
        pasta=table.program("pasta", default.pasta, empty_is="no way out"),
        patience=table.seconds("patience", default.patience, 1, 7 * DAY),
    )
    table.done()
    return section


def _recover(table: Table) -> Recover:
    default = Recover()
    section = Recover(
        events=table.words("events", default.events, RECOVER_EVENTS),
        exit_codes=table.wholes("exit_codes", default.exit_codes, 1, 255),
        attempts=table.whole("attempts", default.attempts, 0, 100),
        hang_after=table.seconds("hang_after", default.hang_after, 10, 30 * DAY),
        margin=table.seconds("margin", default.margin, 1, DAY),
        look_every=table.seconds("look_every", default.look_every, 1, DAY),
    )
    table.done()
    return section


def _hooks(table: Table) -> Hooks:
    section = Hooks(
        pre_checkpoint=table.parsed("pre_checkpoint", parse_command),
        post_checkpoint=table.parsed("post_checkpoint", parse_command),
        post_restore=table.parsed("post_restore", parse_command),
        timeout=table.seconds("timeout", Hooks().timeout, 1, DAY),
    )
    table.done()
    return section


def _requeue(table: Table) -> Requeue:
    section = Requeue(node_feature=table.flag("node_feature", Requeue().node_feature))
    table.done()
    return section


def _fingerprint(table: Table) -> Fingerprint:
    rules = table.section("rules")
    site = table.section("site")
    section = Fingerprint(
        rules={key: rules.word(key, "equal", ("equal", "at-least", "informative")) for key in rules.names()},
        site={key: site.fact(key) for key in site.names()},
    )
    table.done()
    return section


def _log(table: Table) -> Log:
    default = Log()
    section = Log(
        path=table.path("path", default.path),
        level=table.word("level", default.level, ("debug", "info", "warning", "error")),
    )
    table.done()
    return section


def _paths(table: Table) -> Paths:
    default = Paths()
    section = Paths(
        libexec=table.path("libexec", default.libexec),
        run=table.path("run", default.run),
        site_key=table.path("site_key", default.site_key),
    )
    table.done()
    return section
