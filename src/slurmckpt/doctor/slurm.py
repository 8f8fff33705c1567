"""Slurm's own configuration, as slurmctld has it now."""

from __future__ import annotations

import glob
from pathlib import Path

from slurmckpt.doctor.finding import Finding, ok, problem, skipped, warning
from slurmckpt.doctor.host import Cluster, Host

_TESTED_PROCTRACK = ("proctrack/cgroup", "proctrack/linuxproc")
_MAX_SCRIPT = 1 << 20


def controller(host: Host) -> Finding:
    """slurmctld answers, and this host is what it looks like."""
    cluster = host.cluster
    if cluster is None:
        return problem(host.why_no_cluster, "make scontrol show config work on this host")
    text = f"Slurm {cluster.config.get('SLURM_VERSION', '?')}, cluster {cluster.name or '?'}"
    if cluster.node is None:
        if host.slurmd is not None:
            return warning(f"{text}; slurmd runs here, but {cluster.why_no_node}", "run doctor with --node NAME")
        return ok(f"{text}; this host is no compute node of it")
    text += f"; this is node {cluster.node.name} ({'+'.join(sorted(cluster.node.state))})"
    if host.slurmd is None:
        return warning(f"{text}, but slurmd does not run here", "start slurmd")
    return ok(text)


def prolog_flags(host: Host) -> Finding:
    """PrologFlags=Alloc: the coordinator must be there before the first task, on every node of the job."""
    if (cluster := host.cluster) is None:
        return silent()
    flags = cluster.words("PrologFlags")
    shown = ",".join(flags) or "not set"
    if "Alloc" not in flags:
        return problem(
            f"PrologFlags is {shown}: a node's prolog would run only at its first step", "add PrologFlags=Alloc"
        )
    if "RunInJob" in flags:
        return warning(
            f"PrologFlags is {shown}: with RunInJob the coordinator lives in the job, and dies with it",
            "take RunInJob out",
        )
    return ok(shown)


def prolog(host: Host) -> Finding:
    """slurmd's Prolog starts the coordinator."""
    return _hook(host, "Prolog", "prolog", host.is_node, "a compute node")


def epilog(host: Host) -> Finding:
    """slurmd's Epilog stops the coordinator."""
    return _hook(host, "Epilog", "epilog", host.is_node, "a compute node")


def epilog_slurmctld(host: Host) -> Finding:
    """EpilogSlurmctld sends a requeued job to a node that fits."""
    return _hook(host, "EpilogSlurmctld", "epilog-slurmctld", host.is_controller, "the controller")


def proctrack(host: Host) -> Finding:
    """How Slurm finds the processes of a step."""
    if (cluster := host.cluster) is None:
        return silent()
    value = cluster.config.get("ProctrackType", "")
    if value in _TESTED_PROCTRACK:
        return ok(value)
    return warning(f"{value or 'not set'}: only {' and '.join(_TESTED_PROCTRACK)} are tested", "use proctrack/cgroup")


def mpi_default(host: Host) -> Finding:
    """MpiDefault=none: a task that is connected to slurmstepd's PMI server cannot be captured."""
    if (cluster := host.cluster) is None:
        return silent()
    value = cluster.config.get("MpiDefault", "").removeprefix("mpi/") or "none"
    if value == "none":
        return ok("none")
    return warning(
        f"{value}: a step with a connection to Slurm's {value} server cannot be captured",
        "set MpiDefault=none, or let users say srun --mpi=none",
    )


def _hook(host: Host, parameter: str, name: str, here: bool, where: str) -> Finding:
    """Slurm runs our script `name`: itself, or through another script. here: whether this host is one that runs it."""
    if (cluster := host.cluster) is None:
        return silent()
    ours = host.settings.paths.libexec / name
    plugins = cluster.words("PrEpPlugins")
    if plugins and "prep/script" not in plugins:
        return problem(f"PrEpPlugins is {','.join(plugins)}: no scripts are run", "add prep/script to PrEpPlugins")
    configured = cluster.values(parameter)
    shown = ", ".join(configured) or "not set"
    if str(ours) in configured:
        return ok(str(ours))
    remedy = f"add to slurm.conf: {parameter}={ours}"
    if not configured:
        return problem(f"{parameter} is {shown}", remedy)
    if not here:
        return skipped(f"{parameter} is {shown}; whether that runs {ours} can be seen only on {where}")
    for pattern in configured:
        for script in sorted(glob.glob(str(_absolute(cluster, pattern)))):
            if Path(script).resolve() == ours.resolve() or str(ours) in _text(script):
                return ok(f"{script} runs {ours}")
    return problem(f"{parameter} is {shown}, which does not run {ours}", remedy)


def _absolute(cluster: Cluster, pattern: str) -> Path:
    """A relative name is one beside slurm.conf (slurm.conf(5), Prolog)."""
    return Path(cluster.config.get("SLURM_CONF") or "/etc/slurm/slurm.conf").parent / pattern


def _text(script: str) -> str:
    try:
        with open(script, "rb") as file:
            return file.read(_MAX_SCRIPT).decode("utf-8", "replace")
    except OSError:
        return ""


def silent() -> Finding:
    return skipped("slurmctld was not heard")
