"""What cannot be captured at this moment, and can be a little later, by itself."""

from __future__ import annotations

from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.judgements import shown
from slurmckpt.capture.refusals import Reason

_REMEDY = "the next checkpoint will do, unless it never accepts them"


def judge(seen: Inspection) -> Iterator[Reason]:
    """Processes that are just being started, and connections that nobody has accepted, or received, yet."""
    yield from _starting(seen)
    yield from _waiting(seen)
    yield from unread(seen)
    for inode in seen.network.in_messages:
        # CRIU leaves such a socket in repair mode (4.2.1): every call on it fails with EPERM then.
        yield Reason(
            seen.descriptors.sockets[inode].process,
            "is connected by TCP to a socket that is on its way in a message (SCM_RIGHTS), which cannot be captured",
            "the next checkpoint will do, unless nobody ever receives it",
        )


def unread(seen: Inspection) -> Iterator[Reason]:
    """Connections of which only the kernel has a part: nobody holds the other end any more, or yet."""
    holders = seen.descriptors.sockets
    for one in seen.network.unread:
        yield Reason(
            holders[one.inode].process,
            f"has not read what came before the end of its TCP connection with port {one.remote.port}, and a part of"
            " that is only in the kernel, which cannot be captured",
            "the next checkpoint will do when it has been read",
        )
    for one in seen.network.untaken:
        yield Reason(
            holders[one.inode].process,
            f"has a TCP connection with port {one.remote.port} that is not taken up before something is sent on it"
            " (TCP_DEFER_ACCEPT), which cannot be captured",
            "the next checkpoint will do when it has sent something",
        )


def _starting(seen: Inspection) -> Iterator[Reason]:
    """Processes between vfork(2) and their program: their parent waits in the kernel, and cannot be stopped."""
    for one in seen.traits:
        if one.is_vforked:
            yield Reason(
                one.process,
                "has been made by vfork and has not started its program yet, so its parent cannot be stopped",
                "the next checkpoint will do, unless it never starts one",
            )


def _waiting(seen: Inspection) -> Iterator[Reason]:
    """Connections that nobody has accepted yet.

    CRIU cannot dump those over TCP. Over unix sockets it can, unless the listener has to be made anew (unixnames.py).
    """
    sockets = seen.descriptors.sockets
    for one in seen.network.tcp:
        if one.waiting:
            what = f"has {_count(one.waiting)} at its port {one.local.port} that it has not accepted yet"
            yield Reason(sockets[one.inode].process, what, _REMEDY)
    for inode, name in seen.exposed_names.items():
        waiting = len(seen.network.unix[inode].waiting)
        if waiting:
            what = f"has {_count(waiting)} at its unix socket {shown(name)} that it has not accepted yet"
            yield Reason(sockets[inode].process, what, _REMEDY)


def _count(number: int) -> str:
    return f"{number} connection{'s' if number > 1 else ''}"
