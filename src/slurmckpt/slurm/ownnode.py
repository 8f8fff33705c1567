"""Which of Slurm's nodes this host is."""

from __future__ import annotations

import contextlib
import socket

from slurmckpt.errors import SlurmError
from slurmckpt.slurm.port import SlurmPort


async def own_name(port: SlurmPort) -> str:
    """The NodeName of the node with this host's name. Raises SlurmError when Slurm has none, or several.

    The usual case, a node named as its host, asks for one record only: every node of a cluster does this every few
    minutes.
    """
    host = socket.gethostname()
    short = host.partition(".")[0]
    own = (short, host)
    for name in dict.fromkeys(own):
        with contextlib.suppress(SlurmError):
            if (await port.node(name)).hostname in own:
                return name
    found = [node.name for node in await port.nodes() if node.hostname in own]
    if len(found) == 1:
        return found[0]
    many = f"{len(found)} nodes ({', '.join(found[:5])})" if found else "no node"
    raise SlurmError(f"Slurm has {many} with the host name {host}; give its NodeName with --node")
