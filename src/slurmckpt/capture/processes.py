"""The processes of a pod, as the coordinator on the node sees them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from slurmckpt.capture import procfs
from slurmckpt.errors import SlurmckptError, one_line

# ioctl_ns(2): _IO(0xb7, 0x2)
_NS_GET_PARENT = 0xB702
_STATUS = re.compile(r"^(Name|State|PPid|TracerPid|Uid|NSpid):\t(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Process:
    """One process at the moment it was looked at. Texts were chosen by the user: show them with str() or one_line().

    pid, ppid: on this node; ppid 0 when the parent is outside the node's PID namespace. ns_pid: inside the pod.
    comm: as /proc/PID/status writes it, with newlines and backslashes escaped. uid: real uid. state: the letter of
    /proc/PID/status. tracer: pid on this node of the process that traces it, or 0. rank: of the task that it belongs
    to, -1 when that is not known.
    """

    pid: int
    ns_pid: int
    ppid: int
    uid: int
    comm: str
    exe: str
    state: str
    tracer: int
    rank: int = -1

    def __str__(self) -> str:
        named = f"process {self.ns_pid} ({one_line(self.comm, 40)})"
        return named if self.rank < 0 else f"{named} of rank {self.rank}"


@dataclass(frozen=True)
class Tree:
    """members: the processes of the pod's PID namespace without pod init. nested: those in PID namespaces below it."""

    members: list[Process]
    nested: list[Process]


def pod_processes(init_pid: int, leader_pid: int | None = None) -> list[Process]:
    """All processes in the PID namespace of `init_pid` except itself, by rising pid.

    With `leader_pid` only the leader and its descendants: a process that entered the pod from outside, as our own CRIU
    does, is left out. Raises SlurmckptError when pod init is gone.
    """
    return walk(init_pid, leader_pid).members


def pid_on_node(init_pid: int, ns_pid: int) -> int | None:
    """The pid on this node of the process that the pod knows as `ns_pid`; None when it has ended.

    Raises SlurmckptError when pod init is gone.
    """
    return next((process.pid for process in pod_processes(init_pid) if process.ns_pid == ns_pid), None)


def walk(init_pid: int, leader_pid: int | None = None, ranks: Mapping[int, int] | None = None) -> Tree:
    """pod_processes() and, apart from them, the processes in PID namespaces that were made inside the pod.

    ranks: of the tasks, by their pids inside the pod; their descendants have the same.
    """
    home = procfs.link(f"{procfs.PROC}/{init_pid}/ns/pid")
    if not home:
        raise SlurmckptError(f"the pod is gone: its init, process {init_pid}, has ended")
    depth = _depth(init_pid)
    members: list[int] = []
    elsewhere: dict[str, list[int]] = {}
    for name in procfs.names(procfs.PROC):
        if not name.isdigit():
            continue
        # One readlink a process is all that this costs for the processes of the rest of the node.
        try:
            namespace = procfs.link(f"{procfs.PROC}/{name}/ns/pid")
        except PermissionError:
            # Even root may not look into every process of the node (pid 1 of a container); into those of a pod it may.
            continue
        if namespace == home:
            members.append(int(name))
        elif namespace:
            elsewhere.setdefault(namespace, []).append(int(name))
    nested = [pid for pids in elsewhere.values() if _is_below(pids, home) for pid in pids]
    found = (read_process(pid, depth) for pid in sorted(members + nested))
    inside = {process.pid: process for process in found if process is not None}
    if ranks:
        _take_ranks(inside, ranks)
    chosen = inside.keys() - {init_pid} if leader_pid is None else _descendants(inside, leader_pid)
    below = set(nested)
    return Tree(
        members=[p for pid, p in inside.items() if pid in chosen and pid not in below],
        nested=[p for pid, p in inside.items() if pid in chosen and pid in below],
    )


def read_process(pid: int, depth: int = 0) -> Process | None:
    """One process, or None when it has gone.

    depth: which number of NSpid is the pid inside the pod (0 is this node's); the last one where there are fewer.
    """
    directory = f"{procfs.PROC}/{pid}"
    status = procfs.read_record(f"{directory}/status")
    if not status:
        return None
    fields = dict(reversed(_STATUS.findall(status.decode(errors="replace"))))  # the first line of a name counts
    try:
        numbers = [int(n) for n in fields["NSpid"].split()]
        return Process(
            pid=pid,
            ns_pid=numbers[min(depth, len(numbers) - 1)],
            ppid=int(fields["PPid"]),
            uid=int(fields["Uid"].split()[0]),
            comm=fields["Name"],
            exe=procfs.link(f"{directory}/exe") or "",
            state=fields["State"][:1],
            tracer=int(fields["TracerPid"]),
        )
    except (KeyError, IndexError, ValueError):
        # A status that ends in the middle is that of a task being torn down.
        return None


def name_of(pid: int) -> str:
    """`process PID (command)` of a process of this node, for messages."""
    found = read_process(pid)
    return f"process {pid} ({one_line(found.comm, 40)})" if found else f"process {pid}"


def descends(pid: int, ancestor: int) -> bool:
    """Whether a process is `ancestor`, or below it in the tree; also when it has gone, as it is nobody else's then."""
    current = pid
    while current not in (0, 1, ancestor):
        now = read_process(current)
        if now is not None:
            current = now.ppid
        elif current == pid:
            return True
        else:
            # A parent that has ended: its child has another one by now.
            current = pid
    return current == ancestor


def _depth(pid: int) -> int:
    status = procfs.read_record(f"{procfs.PROC}/{pid}/status")
    numbers = procfs.fields(status or b"").get("NSpid", "")
    return max(len(numbers.split()) - 1, 0)


def _is_below(pids: Iterable[int], home: str) -> bool:
    """Whether the PID namespace that all of `pids` are in was made, directly or not, inside the one named `home`."""
    wanted = int(home[len("pid:[") : -1])
    for pid in pids:
        with contextlib.ExitStack() as stack:
            try:
                current = os.open(f"{procfs.PROC}/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            except PermissionError:
                # So the kernel says of one that ends just then, too: its name could be read a moment ago.
                continue
            except OSError as error:
                if procfs.is_gone(error):
                    continue
                raise
            stack.callback(os.close, current)
            while True:
                try:
                    current = fcntl.ioctl(current, _NS_GET_PARENT)
                except PermissionError:
                    # The parent is above our own namespace: we have reached the top of what we can see.
                    return False
                stack.callback(os.close, current)
                if os.fstat(current).st_ino == wanted:
                    return True
    return False


def _take_ranks(processes: dict[int, Process], ranks: Mapping[int, int]) -> None:
    """Each process has the rank of the nearest task above it, or that it is itself."""
    for pid, process in processes.items():
        current, rank = process, ranks.get(process.ns_pid, -1)
        for _ in range(len(processes)):
            if rank >= 0 or current.ppid not in processes:
                break
            current = processes[current.ppid]
            rank = ranks.get(current.ns_pid, -1)
        processes[pid] = replace(process, rank=rank)


def _descendants(processes: dict[int, Process], leader_pid: int) -> set[int]:
    """`leader_pid` and the pids whose chain of parents leads to it."""
    verdicts = {leader_pid: True}
    for pid in processes:
        chain: list[int] = []
        current = pid
        while current not in verdicts and current in processes and current not in chain:
            chain.append(current)
            parent = processes[current].ppid
            if parent not in processes and parent not in verdicts:
                # The parent ended after we had read its number: the child has a new one by now.
                now = read_process(current)
                parent = now.ppid if now is not None else 0
            current = parent
        verdict = verdicts.get(current, False)
        verdicts.update(dict.fromkeys(chain, verdict))
    return {pid for pid, inside in verdicts.items() if inside and pid in processes}
