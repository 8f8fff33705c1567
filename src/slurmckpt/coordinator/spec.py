"""What a job asked for, as the prolog found it: written once to spec.json, read by the coordinator and the epilog."""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurmckpt.config import RECOVER_EVENTS, Settings
from slurmckpt.errors import SlurmckptError
from slurmckpt.hookcommands import ACCEPTED_COMMAND, is_command
from slurmckpt.identity import JobIdentity
from slurmckpt.units import Interval, parse_interval

OPTION_PREFIX = "SPANK__SLURM_SPANK_OPTION_slurmckpt_checkpoint_"
DEFAULT_INTERVAL = Interval("fixed", 600.0)
_MAX_KEEP = 1000
# As spank/values.c accepts them.
_KEEP = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)
_MODEL = re.compile(r"[!-~]{1,255}", re.ASCII)
# A list of nodes: up to the first comma that is not in brackets; and what stands in brackets, from its first number on.
_FIRST_OF_LIST = re.compile(r"(?:[^,\[]|\[[^\]]*\])*")
_RANGES = re.compile(r"\[([0-9]*)[^\]]*\]", re.ASCII)
_MAX_PATH = 4095
_COMMANDS = ("pre", "post", "restored")


class SpecError(SlurmckptError):
    """The prolog's environment does not describe a job, or an option in it is wrong."""


@dataclass(frozen=True)
class Options:
    """The --checkpoint-* options of a job; None where the user gave none.

    They were checked at submission and are checked again here.
    """

    interval: Interval | None = None
    directory: Path | None = None
    keep: int | None = None
    recover: frozenset[str] | None = None
    model: str | None = None
    fresh: bool = False
    pre: str | None = None
    post: str | None = None
    restored: str | None = None

    def given(self) -> bool:
        """Whether the user gave any of them."""
        return self != Options()


@dataclass(frozen=True)
class JobSpec:
    """One job on one node. node: Slurm's NodeName. node_count: nodes of the job. restart_count: its requeues so far.

    het_id: of a heterogeneous job, the id of its first component; else 0. first_start: Slurm says that it has never
    been requeued; False also where Slurm says nothing. leads: its script runs on this node, the first of them.
    """

    job: JobIdentity
    node: str
    node_count: int
    restart_count: int
    options: Options
    het_id: int = 0
    first_start: bool = False
    leads: bool = True

    def interval(self, settings: Settings) -> Interval:
        """The job's own interval; else the site's; else, for a job that gave other options, 10 minutes."""
        if self.options.interval is not None:
            return self.options.interval
        if settings.schedule.interval.kind == "off" and self.options.given():
            return DEFAULT_INTERVAL
        return settings.schedule.interval

    def recover(self, settings: Settings) -> frozenset[str]:
        """The events that the job recovers from: its own list, else the site's."""
        return self.options.recover if self.options.recover is not None else settings.recover.events


def from_environment(environment: Mapping[str, str]) -> JobSpec:
    """The job that slurmd's prolog environment describes. Raises SpecError with one line."""

    def need(name: str) -> str:
        value = environment.get(name, "")
        if not value:
            raise SpecError(f"the prolog's environment has no {name}")
        return value

    try:
        uid = int(need("SLURM_JOB_UID"))
        entry = pwd.getpwuid(uid)
        identity = JobIdentity(
            cluster=environment.get("SLURM_CLUSTER_NAME") or "cluster",
            user=entry.pw_name,
            uid=uid,
            gid=int(environment.get("SLURM_JOB_GID") or entry.pw_gid),
            job_id=int(need("SLURM_JOB_ID")),
        )
        node = environment.get("SLURMD_NODENAME") or os.uname().nodename
        return JobSpec(
            job=identity,
            node=node,
            node_count=_node_count(environment),
            restart_count=int(
                environment.get("SLURM_JOB_RESTART_COUNT") or environment.get("SLURM_RESTART_COUNT") or 0
            ),
            options=_options(environment),
            het_id=int(environment.get("SLURM_HET_JOB_ID") or 0),
            first_start=environment.get("SLURM_JOB_RESTART_COUNT") == "0",
            leads=_first(environment.get("SLURM_JOB_NODELIST", "")) in ("", node),
        )
    except KeyError as error:
        raise SpecError(f"user id {environment.get('SLURM_JOB_UID')} has no account on this node") from error
    except ValueError as error:
        raise SpecError(str(error)) from error


def save(spec: JobSpec, path: Path) -> None:
    """Write the spec where only root reads it."""
    options = spec.options
    document = {
        "job": dataclasses.asdict(spec.job),
        "node": spec.node,
        "node_count": spec.node_count,
        "restart_count": spec.restart_count,
        "het_id": spec.het_id,
        "first_start": spec.first_start,
        "leads": spec.leads,
        "options": {
            "interval": str(options.interval) if options.interval else None,
            "directory": str(options.directory) if options.directory else None,
            "keep": options.keep,
            "recover": sorted(options.recover) if options.recover is not None else None,
            "model": options.model,
            "fresh": options.fresh,
            "pre": options.pre,
            "post": options.post,
            "restored": options.restored,
        },
    }
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)


def load(path: Path) -> JobSpec:
    """The spec that save() wrote. Raises SpecError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        options = document["options"]
        return JobSpec(
            job=JobIdentity(**document["job"]),
            node=document["node"],
            node_count=document["node_count"],
            restart_count=document["restart_count"],
            het_id=document["het_id"],
            first_start=document["first_start"],
            leads=document["leads"],
            options=Options(
                interval=parse_interval(options["interval"]) if options["interval"] else None,
                directory=Path(options["directory"]) if options["directory"] else None,
                keep=options["keep"],
                recover=frozenset(options["recover"]) if options["recover"] is not None else None,
                model=options["model"],
                fresh=options["fresh"],
                pre=options["pre"],
                post=options["post"],
                restored=options["restored"],
            ),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{path} is not a job's specification: {error}") from error


def _node_count(environment: Mapping[str, str]) -> int:
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        if environment.get(name):
            return int(environment[name])
    # slurmd's prolog has no count in some releases; a list of one node has none of the signs of a list.
    return 2 if any(sign in environment.get("SLURM_JOB_NODELIST", "") for sign in ",[") else 1


def _first(nodes: str) -> str:
    """The first node of a list as Slurm writes it: `n01` of `n[01-3,7],m4`; "" of an empty one."""
    match = _FIRST_OF_LIST.match(nodes)
    return _RANGES.sub(r"\1", match[0]) if match else ""


def _options(environment: Mapping[str, str]) -> Options:
    given = {name[len(OPTION_PREFIX) :]: value for name, value in environment.items() if name.startswith(OPTION_PREFIX)}
    interval = given.get("interval")
    directory = given.get("dir")
    keep = given.get("keep")
    recover = given.get("recover")
    model = given.get("model")
    if directory is not None and not _is_path(directory):
        raise SpecError(f"--checkpoint-dir={directory[:80]!r}: an absolute path without control characters is needed")
    if keep is not None and not (_KEEP.fullmatch(keep) and int(keep) <= _MAX_KEEP):
        raise SpecError(f"--checkpoint-keep={keep[:80]!r}: a number from 1 to {_MAX_KEEP} is needed")
    words = frozenset(recover.split(",")) if recover is not None else None
    if words is not None and not words <= set(RECOVER_EVENTS):
        accepted = ", ".join(sorted(RECOVER_EVENTS))
        raise SpecError(f"--checkpoint-recover={str(recover)[:80]!r}: a list of {accepted} is needed")
    if model is not None and not _MODEL.fullmatch(model):
        raise SpecError(f"--checkpoint-model={model[:80]!r}: 1 to 255 printable characters without spaces are needed")
    for name in _COMMANDS:
        if name in given and not is_command(given[name]):
            raise SpecError(f"--checkpoint-{name}={given[name][:80]!r}: {ACCEPTED_COMMAND} is needed")
    return Options(
        interval=parse_interval(interval) if interval is not None else None,
        directory=Path(directory) if directory is not None else None,
        keep=int(keep) if keep is not None else None,
        recover=words,
        model=model,
        fresh="fresh" in given,
        pre=given.get("pre"),
        post=given.get("post"),
        restored=given.get("restored"),
    )


def _is_path(text: str) -> bool:
    size = len(text.encode("utf-8", "surrogateescape"))
    return text.startswith("/") and size <= _MAX_PATH and all(c >= " " and c != "\x7f" for c in text)
