"""Memory and speculation that a process has guarded itself: less guarded after a restore is not what it was."""

from __future__ import annotations

from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.inspect.protections import Protections
from slurmckpt.capture.refusals import Reason


def judge(seen: Inspection) -> Iterator[Reason]:
    """Protection keys, memory that is locked as it is used, and what threads have chosen about speculation."""
    usual = seen.protections[0] if seen.protections else None
    for one in seen.protections:
        if one.has_keys:
            yield Reason(
                one.process,
                "has memory with protection keys (pkey_mprotect), which a restore would not give back",
                "let the program do without, as it does where the CPU has none",
            )
        if one.locks_on_fault:
            yield Reason(
                one.process,
                "has memory that is locked as it is used (MLOCK_ONFAULT), and a restore would take all of it at once",
                "lock it as a whole (mlock), or unlock it before a checkpoint",
            )
        if usual is not None and (name := _chosen(one, usual)):
            yield Reason(
                one.process,
                f"has chosen itself what may be speculated ({name}, {one.speculation[name]}), which a restore would not"
                " give back",
                "start it without (PR_SET_SPECULATION_CTRL), or let the administrator choose it for the whole node",
            )


def _chosen(one: Protections, usual: Protections) -> str:
    """What it has other than the leader, whom the node's choice concerns as well; empty for nothing.

    Where the kernel does it for whoever has a seccomp filter, a filter of its own brings it back.
    """
    for name, value in one.speculation.items():
        with_filter = one.filters > usual.filters and "force" in value
        if value != usual.speculation.get(name) and not with_filter:
            return name
    return ""
