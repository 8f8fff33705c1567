"""All checks, in the order in which an administrator would mend things, and how they are run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from slurmckpt.doctor import criu, directories, gpu, installation, kernel, node, plugin, requeue, settings, slurm, tools
from slurmckpt.doctor.finding import Finding, problem
from slurmckpt.doctor.host import Host

Check = Callable[[Host], Finding]

CHECKS: dict[str, Check] = {
    "slurm": slurm.controller,
    "settings": settings.settings_file,
    "site key": settings.site_key,
    "every job": settings.every_job,
    "programs": installation.programs,
    "hooks": installation.hooks,
    "package": installation.package,
    "plugin": plugin.plugin,
    "plugstack": plugin.stack,
    "PrologFlags": slurm.prolog_flags,
    "Prolog": slurm.prolog,
    "Epilog": slurm.epilog,
    "EpilogSlurmctld": slurm.epilog_slurmctld,
    "JobRequeue": requeue.job_requeue,
    "PreemptMode": requeue.preempt_mode,
    "grace time": requeue.grace_time,
    "MaxBatchRequeue": requeue.max_batch_requeue,
    "RequeueExit": requeue.requeue_exit,
    "JobFileAppend": requeue.job_file_append,
    "requeue delay": requeue.requeue_delay,
    "ProctrackType": slurm.proctrack,
    "MpiDefault": slurm.mpi_default,
    "criu": criu.version,
    "criu check": criu.check,
    "capabilities": criu.capabilities,
    "pids": kernel.pids,
    "namespaces": kernel.namespaces,
    "staging": directories.staging,
    "store": directories.store,
    "log": directories.log,
    "injected faults": directories.injected_faults,
    "ip": tools.ip,
    "pasta": tools.pasta,
    "node feature": node.feature,
    "GPU capture": gpu.capture,
}

# The first use of a GPU without persistence mode takes some ten seconds; a store that does not answer takes for ever.
_SECONDS = 60.0


def run(host: Host, checks: dict[str, Check] | None = None, seconds: float = _SECONDS) -> Iterator[tuple[str, Finding]]:
    """Name and finding of each check, as they come. A check that fails itself, or hangs, is a problem found."""
    for name, check in (CHECKS if checks is None else checks).items():
        yield name, _bounded(check, host, seconds)


def _bounded(check: Check, host: Host, seconds: float) -> Finding:
    found: list[Finding] = []

    def work() -> None:
        try:
            found.append(check(host))
        except Exception as error:  # one check must not keep the others from being made
            found.append(problem(f"cannot be examined: {type(error).__name__}: {error}", "mend what it names"))

    # A daemon: a thread that hangs in a dead mount must not keep this process from ending.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else problem(f"no answer within {seconds:g} s", "look for a mount that hangs")
