"""Programs of the system that a restore may need."""

from __future__ import annotations

import shutil

from slurmckpt.doctor.finding import Finding, ok, problem, skipped, warning
from slurmckpt.doctor.host import Host

_PATH = "/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin:/sbin:/bin"


def ip(host: Host) -> Finding:
    """ip (iproute2): gives a restored pod its old address."""
    if not host.is_node:
        return skipped("only compute nodes need it")
    if found := shutil.which("ip", path=_PATH):
        return ok(found)
    return problem("ip is not installed: jobs with sockets on a node's address are not restored", "install iproute2")


def pasta(host: Host) -> Finding:
    """pasta: the way out of a restored pod that has a network of its own."""
    name = host.settings.restore.pasta
    if not host.is_node:
        return skipped("only compute nodes need it")
    if not name:
        return ok('restore.pasta is "": a restored pod with a network of its own has no way out')
    if found := shutil.which(name, path=_PATH):
        return ok(found)
    return warning(
        f"{name} is not installed: a restored pod with a network of its own has no way out",
        'install passt (the package of pasta), or set restore.pasta = ""',
    )
