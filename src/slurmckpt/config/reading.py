"""slurmckpt.toml -> Settings: section by section, each key with what is accepted."""

from __future__ import annotations

import sys
from pathlib import Path

from slurmckpt.config.settings import (
    RECOVER_EVENTS,
    Capture,
    Files,
    Fingerprint,
    Gate,
    Gpu,
    Hooks,
    Log,
    Paths,
    Recover,
    Requeue,
    Restore,
    Rule,
    Schedule,
    Settings,
    Staging,
    Store,
)
from slurmckpt.config.tables import Table
from slurmckpt.errors import ConfigError
from slurmckpt.filerules import (
    ACCEPTED_DIRECTORIES,
    POLICIES,
    FileRule,
    check_directory,
    check_pattern,
)
from slurmckpt.hookcommands import parse_command
from slurmckpt.units import DAY

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PATH = Path("/etc/slurmckpt/slurmckpt.toml")

# With what keys of a fingerprint begin. A rule for another would never count, and nobody would know.
_GROUPS = ("engine", "gpu", "host", "model", "site")
_ACCEPTED_RULES = (
    'a rule for a key of the fingerprint or a pattern, in quotes, as in "host.kernel"; slurmckpt fingerprint lists them'
)


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
        raise ConfigError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
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
        rule.only("path", "policy")
        rules.append(FileRule(rule.parsed("path", check_pattern), rule.word("policy", "auto", POLICIES)))
        rule.done()
    section = Files(
        policy=table.word("policy", default.policy, POLICIES),
        rules=tuple(rules),
        max_save=table.size("max_save", default.max_save),
        max_read=table.size("max_read", default.max_read),
        max_read_each=table.size("max_read_each", default.max_read_each),
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
        rules={key: _rule(rules, key) for key in rules.names()},
        site={key: site.fact(key) for key in site.names()},
    )
    table.done()
    return section


def _rule(table: Table, key: str) -> Rule:
    group, dot, _ = key.partition(".")
    if not (set(group) & set("*?[") or (dot and group in _GROUPS)):
        # Also what TOML makes of host.kernel without quotes.
        table.refuse(key, _ACCEPTED_RULES)
    return table.word(key, "equal", ("equal", "at-least", "informative"))


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
