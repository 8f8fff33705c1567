"""EpilogSlurmctld: send a job that is being requeued to a node where its checkpoint fits.

Runs as SlurmUser on the controller when a job has ended. For a job in requeue it adds the node feature of the job's
newest checkpoint (recorded in the AdminComment by the coordinator) to the user's own constraint, or takes an earlier
one out again. A job is never left worse than with its own constraint, and the hook never fails: it logs and exits 0.
"""

from __future__ import annotations

import asyncio
import logging
import logging.handlers
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurmckpt import config, logs
from slurmckpt.errors import ConfigError, SlurmError, one_line
from slurmckpt.slurm import admincomment
from slurmckpt.slurm.constraint import NoExactConstraintError, allows, combine, own_part
from slurmckpt.slurm.port import JobInfo, NodeInfo, SlurmPort
from slurmckpt.slurm.scontrol import Scontrol

log = logging.getLogger(__name__)

# The job stays in COMPLETING until the hook ends, and the script in front of it kills it after 7 s without a word.
_TIMEOUT = 6.0
_SYSLOG = "/dev/log"


@dataclass(frozen=True)
class Decision:
    """What the job's constraint and preference (None: it has none) are to be, and why, as the end of a sentence."""

    features: str
    prefer: str | None
    reason: str


def decide(job: JobInfo, nodes: Iterable[NodeInfo], count: int, changeable: bool) -> Decision:
    """The constraint with which a job in requeue is to start again.

    nodes: the cluster's nodes. count: how many of them the job needs. changeable: see constraint.combine().
    """
    own, own_prefer = _own(job)
    feature = admincomment.parse(job.admin_comment)
    if feature is None:
        return Decision(own, own_prefer, "no checkpoint of it is recorded")
    fitting = [
        node.name
        for node in nodes
        if node.usable
        and node.partitions & job.partitions
        and feature in node.active_features
        # changeable features become active when Slurm starts the job
        and (changeable or allows(own, node.active_features))
    ]
    if len(fitting) < count:
        found = f"{len(fitting)} of {count} needed nodes" if fitting else "no node"
        reason = f"{found} with {feature} of its checkpoint can be used, it may have to start cold"
        return Decision(own, own_prefer, reason)
    try:
        features = combine(own, feature, changeable)
        # Slurm tries a preference first, and then instead of the constraint, not beside it.
        prefer = combine(own_prefer, feature, changeable) if own_prefer else own_prefer
    except NoExactConstraintError as error:
        return Decision(own, own_prefer, f"{feature} of its checkpoint cannot be added exactly: {error}")
    return Decision(features, prefer, f"nodes with {feature} of its checkpoint: {_some(fitting)}")


async def handle(port: SlurmPort, job_id: int, count: int, enabled: bool) -> None:
    """Decide about one ended job, change its constraint if need be, and log what was done in one line.

    count: nodes that it ran on. enabled: requeue.node_feature of slurmckpt.toml. Raises SlurmError when Slurm cannot
    be asked; a change that Slurm refuses is logged and undone.
    """
    job = await port.job(job_id)
    if not job.pending:
        log.debug("job %d: not requeued (%s)", job_id, "+".join(sorted(job.state)))
        return
    if enabled:
        decision = await _decision(port, job, count)
    else:
        decision = Decision(*_own(job), "requeue.node_feature is false")
    if decision.features == job.features and (decision.prefer or "") == job.prefer:
        log.info("job %d: constraint %s kept: %s", job_id, _shown(job.features), decision.reason)
        return
    try:
        await port.set_job_features(job_id, decision.features, decision.prefer)
    except SlurmError as error:
        log.warning("job %d: %s", job_id, await _undo(port, job, decision, error))
        return
    log.info(
        "job %d: constraint %s -> %s: %s",
        job_id,
        _shown(job.features),
        _shown(decision.features),
        decision.reason,
    )


def main(environment: Mapping[str, str] = os.environ, settings_file: Path = config.DEFAULT_PATH) -> int:
    """Entry of the hook; always 0. environment: as slurmctld sets it (job_common_env_vars() in its job_mgr.c)."""
    try:
        settings, complaint = _settings(settings_file)
        _log_to(settings.log)
        if complaint:
            log.warning("%s; the defaults are used", complaint)
        job_id, count = _number(environment, "SLURM_JOB_ID"), _number(environment, "SLURM_JOB_NUM_NODES")
        if job_id is None:
            log.error("SLURM_JOB_ID %r is not a job id", environment.get("SLURM_JOB_ID"))
            return 0
        work = handle(Scontrol(), job_id, count or 1, settings.requeue.node_feature)
        asyncio.run(asyncio.wait_for(work, _TIMEOUT))
    except asyncio.TimeoutError:
        log.error("job %s: gave up after %g s, its constraint is left alone", environment.get("SLURM_JOB_ID"), _TIMEOUT)
    except SlurmError as error:
        log.error("job %s: its constraint is left alone: %s", environment.get("SLURM_JOB_ID"), error)
    except Exception as error:  # a hook of the controller does not fail
        log.error("job %s: %s", environment.get("SLURM_JOB_ID"), one_line(f"{type(error).__name__}: {error}"))
    return 0


async def _decision(port: SlurmPort, job: JobInfo, count: int) -> Decision:
    """decide(), with what it needs to know from Slurm."""
    if admincomment.parse(job.admin_comment) is None:
        return decide(job, (), count, changeable=False)
    settings, nodes = await asyncio.gather(port.config(), port.nodes())
    return decide(job, nodes, count, changeable=bool(settings.get("NodeFeaturesPlugins")))


def _own(job: JobInfo) -> tuple[str, str | None]:
    """The user's own constraint and preference (None: there is none)."""
    return own_part(job.features), own_part(job.prefer) if job.prefer else None


async def _undo(port: SlurmPort, job: JobInfo, decision: Decision, error: SlurmError) -> str:
    """After a refused change: make sure that the job has its own constraint. Returns what to log."""
    own, own_prefer = _own(job)
    refused = f"constraint {_shown(decision.features)} was refused ({error})"
    # One request can change the constraint and fail at the preference: what Slurm has now is not known for sure.
    if (own, own_prefer) == (decision.features, decision.prefer):
        return f"{refused}; {_shown(job.features)} stays"
    try:
        await port.set_job_features(job.job_id, own, own_prefer)
    except SlurmError as second:
        return f"{refused}; its own constraint {_shown(own)} was refused too ({second})"
    return f"{refused}; it has its own constraint {_shown(own)}"


def _settings(path: Path) -> tuple[config.Settings, str]:
    try:
        return config.load(path), ""
    except ConfigError as error:
        return config.Settings(), str(error)


def _log_to(settings: config.Log) -> None:
    """The log, or syslog where SlurmUser may not write it: slurmctld throws away what a hook says."""
    logs.start(settings.path, settings.level, "requeue")
    if not os.access(settings.path, os.W_OK) and os.path.exists(_SYSLOG):
        handler = logging.handlers.SysLogHandler(_SYSLOG)
        handler.setFormatter(logs.OneLine("slurmckpt requeue: %(levelname)s: %(message)s"))
        logging.getLogger().addHandler(handler)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else None


def _shown(constraint: str) -> str:
    return f"'{constraint}'" if constraint else "(none)"


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


if __name__ == "__main__":
    sys.exit(main())
