"""What the kernel must offer for a pod to be built and its processes to get their old pids back."""

from __future__ import annotations

import os

from slurmckpt.doctor.finding import Finding, ok, problem, skipped, warning
from slurmckpt.doctor.host import Host

_NAMESPACES = ("mnt", "pid", "ipc", "net")


def pids(host: Host) -> Finding:
    """/proc/sys/kernel/ns_last_pid: by it pod init says which pids are given next."""
    if not host.is_node:
        return skipped("only compute nodes need it")
    last = host.proc / "sys/kernel/ns_last_pid"
    if not host.proc.joinpath("self/status").exists():
        return problem(f"{host.proc} is not mounted", "mount -t proc proc /proc")
    if not last.exists():
        return problem(f"{last} is missing: the kernel has no CONFIG_CHECKPOINT_RESTORE", "run another kernel")
    if not host.root:
        return ok(f"{last} is there; whether root may write it, only root can see")
    if not os.access(last, os.W_OK):
        return problem(f"{last} cannot be written", "mount /proc/sys writable (slurmd in a container?)")
    return ok(f"{last} can be written")


def namespaces(host: Host) -> Finding:
    """A pod is made of namespaces; the clocks of a restored one need a further kind."""
    if not host.is_node:
        return skipped("only compute nodes need them")
    missing = [kind for kind in _NAMESPACES if not os.path.lexists(host.proc / "self/ns" / kind)]
    if missing:
        return problem(f"the kernel has no namespaces of kind {', '.join(missing)}", "run another kernel")
    for kind in _NAMESPACES:
        limit = host.proc / f"sys/user/max_{kind}_namespaces"
        if limit.exists() and limit.read_text(encoding="ascii").strip() == "0":
            return problem(f"{limit} is 0: nobody may make one", f"sysctl user.max_{kind}_namespaces=100000")
    if not os.path.lexists(host.proc / "self/ns/time"):
        return warning(
            "the kernel has no time namespaces (Linux 5.6): clocks of a restored job jump to those of the new node",
            "run a newer kernel, or restore only on nodes that booted at the same time",
        )
    return ok(f"{', '.join((*_NAMESPACES, 'time'))}")
