"""TCP connections of a pod with slurmstepd, of which the ranks of a step with PMIx have one each."""

from __future__ import annotations

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.network import Network
from slurmckpt.capture.inspect.tcpdiag import tcp_sockets

_STEPD = b"slurmstepd\n"


def tcp_to_stepd(init_pid: int, network: Network) -> list[int]:
    """The inodes of the pod's sockets whose other ends a slurmstepd of this node holds."""
    ends = {(one.remote, one.local): one.inode for one in network.outside()}
    if not ends:
        return []
    # Only what has an end on this node at all is worth a look at its processes.
    there = {
        f"socket:[{one.inode}]": ends[one.local, one.remote]
        for one in tcp_sockets(init_pid)
        if (one.local, one.remote) in ends
    }
    return sorted({there[link] for link in _held_by_stepds() if link in there}) if there else []


def _held_by_stepds() -> set[str]:
    found: set[str] = set()
    for name in procfs.names(procfs.PROC):
        if name.isdigit() and procfs.read_record(f"{procfs.PROC}/{name}/comm") == _STEPD:
            directory = f"{procfs.PROC}/{name}/fd"
            found |= {link for number in procfs.names(directory) if (link := procfs.link(f"{directory}/{number}"))}
    return found
