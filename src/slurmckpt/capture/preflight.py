"""One look at a pod before it is frozen: what a capture has to know about it, and what would make it fail.

The processes run on while they are looked at, so the result is a forecast: CRIU has the last word. Its purpose is to
say no, with a reason and a way out, before a rank has been stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field

from slurmckpt.capture import unixqueues
from slurmckpt.capture.inspect.descriptors import Holder
from slurmckpt.capture.inspect.inspection import Inspection, Limits, inspect
from slurmckpt.capture.inspect.used import UsedFile, used_files
from slurmckpt.capture.inspect.written import OpenFile, named_pipes, open_files
from slurmckpt.capture.judgements import (
    anonymous,
    devices,
    ipc,
    leases,
    limits,
    memory,
    mounts,
    names,
    namespaces,
    outside,
    passing,
    pidfds,
    processes,
    protections,
    size,
    sockets,
    unix,
    watches,
)
from slurmckpt.capture.processes import Process
from slurmckpt.capture.refusals import Reason, sentences
from slurmckpt.capture.socketdirs import OwnDirectory

__all__ = ["Connection", "Limits", "OpenFile", "PodScan", "UsedFile", "scan"]

# The order of the sentences: what is likely to explain others comes first.
_JUDGEMENTS: tuple[Callable[[Inspection], Iterator[Reason]], ...] = (
    namespaces.judge,
    processes.judge,
    anonymous.judge,
    ipc.judge,
    pidfds.judge,
    memory.judge,
    protections.judge,
    devices.judge,
    size.judge,
    mounts.judge,
    outside.judge,
    names.judge,
    leases.judge,
    unix.judge,
    sockets.judge,
    watches.judge,
    limits.judge,
)


@dataclass(frozen=True)
class Connection:
    """A TCP connection that leaves the pod.

    local, remote: `address:port`. pid: on this node. state: as in Linux include/net/tcp_states.h.
    """

    local: str
    remote: str
    pid: int
    comm: str
    inode: int
    state: int


@dataclass(frozen=True)
class PodScan:
    """What one look at a pod found.

    processes: the leader and its descendants. refusals: one sentence each; empty when nothing speaks against a capture.
    passing: what speaks against it at this moment only.

    open_files: one entry a file. addresses: local addresses, other than loopback and wildcard, that inet sockets are
    bound to. external: CRIU's keys of the descriptors that come from outside. outside: TCP connections that end
    outside the pod. notes: what is unusual but no reason to refuse. inside: both ends, (local, remote), of each
    connection that does not. used_files: what is mapped, or open for reading. moments: those of the passing ones that
    CRIU would not stumble over. socket_directories: the user's own in which unix sockets are bound. nameless_shm:
    whether files in /dev/shm are open, or mapped, that have lost their name. has_timerfds: whether there are any. gpus:
    those that have a device of NVIDIA's open or mapped, which must go before CRIU comes. named_pipes: one entry a path.
    failed_sockets, datagram_sockets, message_sockets: as failedsockets.save(), datagrams.save() and unixqueues.lost()
    take them.
    """

    processes: list[Process]
    refusals: list[str]
    open_files: list[OpenFile]
    addresses: list[str]
    external: list[str]
    outside: list[Connection]
    notes: list[str]
    inside: list[tuple[str, str]] = field(default_factory=list)
    used_files: list[UsedFile] = field(default_factory=list)
    moments: list[str] = field(default_factory=list)
    socket_directories: list[OwnDirectory] = field(default_factory=list)
    nameless_shm: bool = False
    has_timerfds: bool = False
    gpus: list[Process] = field(default_factory=list)
    named_pipes: list[OpenFile] = field(default_factory=list)
    passing: list[str] = field(default_factory=list)
    failed_sockets: list[str] = field(default_factory=list)
    datagram_sockets: list[str] = field(default_factory=list)
    message_sockets: list[str] = field(default_factory=list)


def scan(
    init_pid: int,
    leader_pid: int,
    known: Container[str] = frozenset(),
    limits: Limits | None = None,
    shim_pid: int = 0,
    ranks: Mapping[int, int] | None = None,
    frozen: bool = False,
) -> PodScan:
    """Look at the pod of `init_pid`. Pids are those of this node.

    known: CRIU's external keys (`file[MNT_HEX:INO_HEX]`, `pipe:[INODE]`) of the descriptors that will be given again
    at a restore. Any other descriptor from outside is a refusal. shim_pid: a process in the mount namespace that the
    pod's was made from, 0 for none: then what the job has mounted itself is not noticed. ranks: of the tasks, by their
    pids inside the pod. frozen: as of inspect(). Blocks while a file system does not answer: call it in a thread.
    Raises SlurmckptError when the pod is gone, OSError when /proc cannot be read.
    """
    seen = inspect(init_pid, leader_pid, known, limits or Limits(), shim_pid, ranks, frozen)
    reasons = [reason for judge in _JUDGEMENTS for reason in judge(seen)]
    holders = seen.descriptors.sockets
    return PodScan(
        processes=seen.processes,
        refusals=sentences(reasons, seen.limits.refusals),
        passing=sentences([*passing.judge(seen), *watches.unread(seen)], seen.limits.refusals),
        open_files=open_files(seen),
        named_pipes=named_pipes(seen),
        addresses=seen.network.addresses(),
        external=list(dict.fromkeys(one.key for one in outside.from_outside(seen))),
        outside=[
            Connection(
                local=str(one.local),
                remote=str(one.remote),
                pid=holders[one.inode].process.pid,
                comm=holders[one.inode].process.comm,
                inode=one.inode,
                state=one.state,
            )
            for one in seen.network.outside()
        ],
        notes=[*seen.notes, *processes.notes(seen)],
        inside=[(str(one.local), str(one.remote)) for one in seen.network.inside()],
        moments=sentences([*watches.unread(seen), *passing.unread(seen)], seen.limits.refusals),
        used_files=used_files(seen.descriptors, seen.mappings, seen.mounts),
        socket_directories=seen.socket_directories,
        has_timerfds=any(one.kind == "timerfd" for one in seen.descriptors.anonymous),
        nameless_shm=any(path.startswith("/dev/shm/") for path in _lost_paths(seen)),
        gpus=devices.gpu_users(seen),
        failed_sockets=[_key(one.holder) for one in seen.other_sockets if one.has_failed],
        message_sockets=[
            _key(holder)
            for inode, holder in holders.items()
            if (one := seen.network.unix.get(inode)) is not None and one.type in unixqueues.KINDS
        ],
        datagram_sockets=[_key(holders[one.inode]) for one in seen.network.udp if one.has_unread],
    )


def _key(holder: Holder) -> str:
    """By which heldsockets.named() finds a socket."""
    return f"{holder.process.ns_pid}/{holder.descriptor}"


def _lost_paths(seen: Inspection) -> Iterator[str]:
    """The names of files that are open or mapped and that nothing has any more."""
    yield from (one.path for one in seen.descriptors.files if one.deleted)
    for mappings in seen.mappings:
        yield from (one.path for one in mappings.special if one.is_deleted)
