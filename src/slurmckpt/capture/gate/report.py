"""What the gate tells of each rank: its last operation, how many it has enqueued, and who did not come."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from slurmckpt.capture.gate.judge import Alive, Verdict, judge, name
from slurmckpt.capture.gate.layout import Member, Snapshot, State


@dataclass(frozen=True)
class RankNote:
    """One rank in one communicator. pid: inside the pod.

    operations: how many it has enqueued. missing: how many others have enqueued that wait for it: collectives, or sends
    and receives with one of them, whichever is more. last, elements: its last operation. state: held, enqueueing,
    running, or gone when its process has died.
    """

    communicator: str
    ranks: int
    rank: int
    pid: int
    state: str
    operations: int
    missing: int
    last: str
    elements: int


@dataclass(frozen=True)
class Report:
    """counts: changes whenever any rank enqueues anything.

    waits_for: the ranks that others wait for, as one line; empty when everything enqueued is matched. absent: the pids
    of those among them that wait for nobody themselves.
    """

    ranks: tuple[RankNote, ...]
    counts: int
    waits_for: str
    absent: frozenset[int]


def report(snapshot: Snapshot, alive: Alive) -> Report:
    """From one look at the gate's memory."""
    members = [member for member in snapshot.members if member.state is State.PRESENT]
    verdict = judge(snapshot, alive)
    missing: dict[tuple[int, int, int], int] = defaultdict(int)
    for behind in verdict.behind:
        place = (behind.communicator, behind.rank, behind.pid)
        missing[place] = max(missing[place], behind.others - behind.has)
    notes = [_note(member, missing[member.communicator, member.rank, member.pid], alive) for member in members]
    return Report(
        tuple(sorted(notes, key=lambda note: (note.communicator, note.rank, note.pid))),
        sum(member.entries + member.collectives + member.transfers for member in snapshot.members),
        _waits_for(verdict),
        frozenset(behind.pid for behind in verdict.behind) - verdict.waiting,
    )


def _note(member: Member, missing: int, alive: Alive) -> RankNote:
    state = "held" if member.held else "enqueueing" if member.is_inside else "running"
    return RankNote(
        communicator=name(member.communicator).rpartition(" ")[2],
        ranks=member.ranks,
        rank=member.rank,
        pid=member.pid,
        state=state if alive(member.pid) else "gone",
        operations=member.collectives + member.transfers,
        missing=missing,
        last=member.function,
        elements=member.elements,
    )


def _waits_for(verdict: Verdict) -> str:
    """Of each rank the communicator in which it is furthest behind."""
    worst = {}
    for behind in sorted(verdict.behind, key=lambda one: one.others - one.has):
        worst[behind.pid] = behind
    return "; ".join(str(behind) for behind in sorted(worst.values(), key=lambda one: one.rank)[:4])
