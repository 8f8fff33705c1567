"""One look at the processes of a pod: everything that is judged afterwards, read once."""

from __future__ import annotations

import resource
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from slurmckpt.capture import mqueues, procfs, rlimits
from slurmckpt.capture.inspect.descriptors import Descriptors, HalfPipe, other_end_lives, read_descriptors
from slurmckpt.capture.inspect.mappings import Mappings, read_mappings
from slurmckpt.capture.inspect.mounts import Mount, made_inside, mounts_of
from slurmckpt.capture.inspect.network import Network, OtherSocket
from slurmckpt.capture.inspect.peers import OuterPeer, connections_in_flight, exposed_names, in_flight, outer_peers
from slurmckpt.capture.inspect.pidfds import Pidfd, pidfds
from slurmckpt.capture.inspect.protections import Protections, read_protections
from slurmckpt.capture.inspect.stepd import tcp_to_stepd
from slurmckpt.capture.inspect.traits import Traits, read_traits
from slurmckpt.capture.inspect.watches import Watched, watches
from slurmckpt.capture.processes import Process, Tree, name_of, walk
from slurmckpt.capture.socketdirs import OwnDirectory

# The links of proc_pid_ns(5). One that a kernel does not have is not among what is found.
_NAMESPACES = (
    *("user", "mnt", "net", "ipc", "uts", "cgroup", "pid", "time"),
    *("pid_for_children", "time_for_children"),
)
# include/uapi/linux/capability.h
_CAP_SYS_RESOURCE = 24


@dataclass(frozen=True)
class Limits:
    """How much of a pod is looked at; a pod with more is refused. refusals: how many sentences are made at most."""

    processes: int = 8192
    descriptors: int = 262144
    refusals: int = 20


@dataclass(frozen=True)
class Place:
    """The working directory and the root of a process, by their paths in the pod; empty for one of more than a page."""

    process: Process
    paths: list[str]


@dataclass(frozen=True)
class Inspection:
    """What one look at a pod found.

    known: CRIU's keys of the descriptors that will be given again at a restore. processes: the leader and its
    descendants, as many as the limits allow. home: the namespaces of pod init. namespaces: those of each process, by
    pid; none of one that has ended and was not waited for. mounts: by id. half_pipes: those whose other end somebody
    outside holds, or that are known. other_sockets: those in none of the network's tables. outer_peers: of its unix
    sockets. exposed_names: unix sockets by inode, bound in directories that not only root may change.
    socket_directories: the user's own in which some are bound and can be made again. tracers: who traces a process, by
    the process's pid. open_limit: how many descriptors a process may have in a restore on this node. mounts_inside: the
    ids of the mounts that the job itself has made. places: where the processes work. watches: of inotify and fanotify.
    traits: of processes that have any. queues: names of POSIX message queues. notes: what could not be looked at.
    tcp_to_stepd: the inodes of connections with slurmstepd. small_files: processes that may not write a file as large
    as CRIU's log, where root may not lift that, with how large one they may write. protections: empty of a pod that
    stands still.
    """

    init_pid: int
    known: Container[str]
    limits: Limits
    tree: Tree
    processes: list[Process]
    home: dict[str, str]
    namespaces: dict[int, dict[str, str]]
    mounts: dict[int, Mount]
    descriptors: Descriptors
    network: Network
    half_pipes: list[HalfPipe]
    other_sockets: list[OtherSocket]
    outer_peers: list[OuterPeer]
    exposed_names: dict[int, str]
    socket_directories: list[OwnDirectory]
    tracers: dict[int, str]
    mappings: list[Mappings]
    open_limit: int
    mounts_inside: set[int]
    places: list[Place]
    watches: list[Watched]
    pidfds: list[Pidfd]
    traits: list[Traits]
    queues: list[str]
    tcp_to_stepd: list[int]
    small_files: list[tuple[Process, int]] = field(default_factory=list)
    protections: list[Protections] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether the limits allowed a look at the whole pod; of another one nobody can say what leads out of it."""
        return len(self.processes) == len(self.tree.members) and self.descriptors.complete


def inspect(
    init_pid: int,
    leader_pid: int,
    known: Container[str],
    limits: Limits,
    shim_pid: int = 0,
    ranks: Mapping[int, int] | None = None,
    frozen: bool = False,
) -> Inspection:
    """Look at the pod of `init_pid`. Pids are those of this node.

    shim_pid: a process in the mount namespace that the pod's was made from; 0 when there is none any more. ranks: of
    the tasks, by their pids inside the pod. frozen: do they stand still? Then what takes long is not looked at again.

    Whatever seems to lead out of the pod is looked at twice, because the other end may have been created, or handed to
    a child, between the looks at two processes. Blocks while a file system does not answer: call it in a thread.
    Raises SlurmckptError when the pod is gone, OSError when /proc cannot be read.
    """
    notes: list[str] = []
    tree = walk(init_pid, leader_pid, ranks)
    processes = tree.members[: limits.processes]
    descriptors = read_descriptors(processes, limits.descriptors)
    network = Network(init_pid, descriptors)
    if _leads_out(descriptors, network, known):
        again = walk(init_pid, leader_pid, ranks).members[: limits.processes]
        descriptors.confirm(read_descriptors(again, limits.descriptors))
        network = Network(init_pid, descriptors)
        pids = {process.pid for process in again}
        network.end_inside(connections_in_flight(init_pid, leader_pid, network, pids))
    mounts = mounts_of(init_pid)
    inside = made_inside(mounts, mounts_of(shim_pid) if shim_pid else {})
    exposed, own_directories = exposed_names(init_pid, network)
    return Inspection(
        init_pid=init_pid,
        known=known,
        limits=limits,
        tree=tree,
        processes=processes,
        home=_namespaces(init_pid),
        namespaces={process.pid: _namespaces(process.pid) for process in processes},
        mounts=mounts,
        descriptors=descriptors,
        network=network,
        half_pipes=[
            pipe
            for pipe in descriptors.half_pipes()
            if pipe.key in known or _leads_outside(pipe, processes, leader_pid)
        ],
        other_sockets=network.others(notes),
        outer_peers=outer_peers(leader_pid, network),
        exposed_names=exposed,
        socket_directories=own_directories,
        tracers={process.pid: name_of(process.tracer) for process in processes if process.tracer},
        mappings=read_mappings(processes),
        open_limit=_open_limit(),
        mounts_inside=inside,
        places=_places(processes),
        watches=watches(init_pid, descriptors.anonymous, mounts),
        pidfds=list(pidfds(descriptors.anonymous, {process.pid for process in processes}, leader_pid)),
        tcp_to_stepd=tcp_to_stepd(init_pid, network),
        traits=read_traits(init_pid, processes),
        queues=mqueues.names(init_pid),
        small_files=[] if _lifts_limits() else list(rlimits.fixed(processes)),
        protections=[] if frozen else read_protections(processes),
        notes=notes,
    )


def _places(processes: list[Process]) -> list[Place]:
    """Paths only: a look at the directory itself could wait for a program of the pod's."""
    found: list[Place] = []
    for process in processes:
        links = [procfs.link(f"{procfs.PROC}/{process.pid}/{name}") for name in ("cwd", "root")]
        found.append(Place(process, [link for link in links if link is not None]))
    return found


def _open_limit() -> int:
    """RLIMIT_NOFILE of a CRIU that we start: it raises its own as far as it may (rlimit_unlimit_nofile() in util.c)."""
    if _lifts_limits():
        return int(procfs.read(f"{procfs.PROC}/sys/fs/nr_open") or b"0")
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def _lifts_limits() -> bool:
    status = procfs.fields(procfs.read_record(f"{procfs.PROC}/self/status") or b"")
    return bool(int(status["CapEff"], 16) >> _CAP_SYS_RESOURCE & 1)


def _leads_out(descriptors: Descriptors, network: Network, known: Container[str]) -> bool:
    """Whether anything that is not expected seems to have an end outside the pod."""
    pipes = any(pipe.key not in known for pipe in descriptors.half_pipes())
    return pipes or bool(network.outside()) or any(True for _ in network.unix_peers_outside())


def _leads_outside(pipe: HalfPipe, pod: list[Process], leader: int) -> bool:
    """A pipe whose other end nobody holds any more is complete as it is: CRIU brings it back with one end."""
    return other_end_lives(pipe) and not in_flight(pipe.key, {process.pid for process in pod}, leader)


def _namespaces(pid: int) -> dict[str, str]:
    with procfs.opened(f"{procfs.PROC}/{pid}/ns") as directory:
        found = {name: procfs.link(name, directory) for name in _NAMESPACES if directory is not None}
        links = {name: link for name, link in found.items() if link is not None}
        # One that ends loses them all at once, and that may have been in the middle of this look.
        ended = directory is None or (len(links) < len(_NAMESPACES) and procfs.link("mnt", directory) is None)
    return {} if ended else links
