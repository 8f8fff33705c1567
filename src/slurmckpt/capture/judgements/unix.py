"""Unix sockets: peers outside the pod, and names that CRIU, as root, would have to make again, or misreads."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.inspect.paths import DELETED
from slurmckpt.capture.inspect.peers import OuterPeer
from slurmckpt.capture.judgements import shown
from slurmckpt.capture.refusals import Reason

_CLOSE = "close the connection before a checkpoint, or do not use the service behind it"
_STEPS = "start both programs in one step, if both are the job's, or close the connection before a checkpoint"
_PMI = "start the step with srun --mpi=none (this is the PMI of MPI), and MPI programs with mpirun"
# Where well-known services listen, and how to do without them.
_SERVICES = (
    (("/run/nscd/", "/var/run/nscd/"), "the program is looking up names: a later checkpoint will do"),
    (("/var/lib/sss/", "/run/systemd/userdb/"), "the program is looking up users: a later checkpoint will do"),
    (("/dev/log", "/run/systemd/journal/"), "let the program log to a file, or close the log (closelog) between lines"),
    (("/run/dbus/", "/var/run/dbus/", "/run/user/"), "set DBUS_SESSION_BUS_ADDRESS=disabled: for the job"),
    (("/tmp/.X11-unix/", "@/tmp/.X11-unix/"), "run it without a display"),
    (("/run/munge/", "/var/run/munge/"), "the program is talking to munge: a later checkpoint will do"),
)


def judge(seen: Inspection) -> Iterator[Reason]:
    """Connections to outside, datagram sockets bound where their user may put a link in their place, odd names.

    At a restore CRIU makes a socket anew at its path and changes its owner there, by name. In a directory that the
    user may change, a link could stand in the place of either by then. What listens there is made anew by the user
    (unixnames.py), but the messages that wait in a datagram socket only CRIU can put back.
    """
    sockets = seen.descriptors.sockets
    for peer in seen.outer_peers if seen.complete else ():
        named = f" ({shown(peer.name)})" if peer.name else ""
        whom = peer.whom or "a process that has not accepted it yet,"
        yield Reason(
            sockets[peer.inode].process,
            f"is connected by a unix socket{named} to {whom} outside the pod, which cannot be captured",
            _way_out(peer),
        )
    for inode, name in seen.exposed_names.items():
        if seen.network.unix[inode].type != socket.SOCK_DGRAM:
            continue
        yield Reason(
            sockets[inode].process,
            f"has a unix datagram socket at {shown(name)}, in a directory that its user may change",
            "bind it in /tmp or /dev/shm itself, or in a directory right below them, or use an abstract name",
        )
    for inode, holder in sockets.items():
        one = seen.network.unix.get(inode)
        # strip_deleted() in CRIU's util.c: it would remove the name at a restore.
        if one is not None and one.name.endswith(DELETED) and not one.name.startswith("@"):
            yield Reason(
                holder.process,
                f"has a unix socket at {shown(one.name)}, which a capture would take for a name that is gone",
                "give it a name that does not end like that",
            )


def _way_out(peer: OuterPeer) -> str:
    if peer.whom.endswith("(slurmstepd)"):
        return _PMI
    usual = _STEPS if peer.own else _CLOSE
    return next((remedy for places, remedy in _SERVICES if peer.name.startswith(places)), usual)
