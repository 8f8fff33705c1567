"""Who is at the other end of a unix socket that leads out of the pod, and where those of the pod are bound."""

from __future__ import annotations

import os
import stat
from collections.abc import Container
from dataclasses import dataclass

from slurmckpt.capture import procfs, socketdirs
from slurmckpt.capture.inspect.network import Network
from slurmckpt.capture.inspect.tcpdiag import tcp_sockets
from slurmckpt.capture.processes import descends, name_of, read_process


@dataclass(frozen=True)
class OuterPeer:
    """A unix socket of the pod that is connected to one outside.

    inode: of the pod's socket. name: of one of the two, empty when neither has one. whom: the process that holds the
    other end (`process PID (command)`), empty when it has not been accepted yet. own: whether it is the job's user's.
    """

    inode: int
    name: str
    whom: str
    own: bool = False


def outer_peers(leader: int, network: Network) -> list[OuterPeer]:
    """Those whose other end somebody holds who does not belong to the pod, or will accept.

    Where there is any, it looks at every descriptor of the node, as a name is worth more to the user than the time.
    """
    outside = list(network.unix_peers_outside())
    pod = {holder.process.pid for holder in network.mine.values()}
    holders = holders_on_node({socket_link(peer) for _, peer in outside if peer}, pod, leader)
    found: list[OuterPeer] = []
    for mine, peer in outside:
        other = holders.get(socket_link(peer))
        if peer and other is None:
            # Nobody holds the other end: it is on its way inside a message, or has been closed since.
            continue
        there = network.unix.get(peer)
        name = mine.name or (there.name if there else "")
        uid = network.mine[mine.inode].process.uid
        process = read_process(other) if other else None
        own = process is not None and process.uid == uid != 0
        found.append(OuterPeer(mine.inode, name, name_of(other) if other else "", own))
    return found


def exposed_names(init_pid: int, network: Network) -> tuple[dict[int, str], list[socketdirs.OwnDirectory]]:
    """The unix sockets of the pod, by inode, that are bound where somebody else than root may change directories.

    Apart from them, the directories that can be taken from their user while sockets are made in them again.
    """
    found: dict[int, str] = {}
    safe: dict[str, bool] = {}
    own: list[socketdirs.OwnDirectory] = []
    for inode in network.mine:
        one = network.unix.get(inode)
        if one is None or not one.name or one.name.startswith("@"):
            continue
        directory = os.path.dirname(one.name)
        if directory not in safe:
            mine = socketdirs.find(init_pid, directory, network.mine[inode].process.uid)
            own += [mine] if mine is not None else []
            safe[directory] = mine is not None or only_root_changes(init_pid, directory)
        if not safe[directory]:
            found[inode] = one.name
    return found, own


def connections_in_flight(init_pid: int, leader: int, network: Network, pod: Container[int]) -> set[int]:
    """The TCP sockets of the pod, by inode, whose other end is on its way inside a message (SCM_RIGHTS).

    leader, pod: pids on this node. Where connections seem to lead out, it looks at all sockets of the network
    namespace, and where one of them ends there, at every descriptor of the node.
    """
    outside = {(one.remote, one.local): one.inode for one in network.outside()}
    if not outside:
        return set()
    others = {
        socket_link(one.inode): outside[one.local, one.remote]
        for one in tcp_sockets(init_pid)
        if one.inode and (one.local, one.remote) in outside
    }
    held = holders_on_node(set(others), pod, leader) if others else {}
    return {mine for link, mine in others.items() if link not in held}


def in_flight(link: str, pod: Container[int], leader: int) -> bool:
    """Whether no process of this node holds the pipe or socket, but for those of the pod.

    pod, leader: as of holders_on_node(). If it lives, it is on its way inside a message (SCM_RIGHTS), and CRIU takes it
    along; or somebody of the pod has it who is younger than the look.
    """
    return not holders_on_node({link}, pod, leader)


def socket_link(inode: int) -> str:
    """What a descriptor of this socket looks like in /proc/PID/fd."""
    return f"socket:[{inode}]"


def holders_on_node(wanted: set[str], without: Container[int], leader: int) -> dict[str, int]:
    """Link of a descriptor (proc_pid_fd(5)) -> pid of a process of this node that holds it. It looks at all of them.

    But for those in `without`, and those below `leader`: a pod that starts processes all the time has some by now that
    no look at it has found.
    """
    found: dict[str, int] = {}
    for name in procfs.names(procfs.PROC) if wanted else ():
        if len(found) == len(wanted):
            break
        if not name.isdigit() or int(name) in without:
            continue
        directory = f"{procfs.PROC}/{name}/fd"
        try:
            targets = [procfs.link(f"{directory}/{number}") for number in procfs.names(directory)]
        except PermissionError:
            continue
        held = wanted.intersection(target for target in targets if target is not None)
        if held and not descends(int(name), leader):
            for target in held:
                found.setdefault(target, int(name))
    return found


def only_root_changes(init_pid: int, directory: str) -> bool:
    """Whether no directory of this path, as the pod sees it, can be replaced or emptied by anybody but root."""
    if not directory.startswith("/"):
        return False
    parts = [part for part in directory.split("/") if part]
    for count in range(len(parts) + 1):
        try:
            status = os.lstat(f"{procfs.PROC}/{init_pid}/root/{'/'.join(parts[:count])}")
        except OSError:
            return False
        shared = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0 or shared:
            return False
    return True
