"""Are the ranks at a boundary? And who is not: from one snapshot of the gate's memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from slurmckpt.capture.gate.layout import NOTE_FULL, Member, Snapshot, State

# Whether a process of the pod is alive, by its pid inside.
Alive = Callable[[int], bool]

_NAMED = 4


@dataclass(frozen=True)
class Behind:
    """A rank for which others wait. has, others: operations it has enqueued, and those that others have."""

    communicator: int
    rank: int
    pid: int
    has: int
    others: int
    function: str

    def __str__(self) -> str:
        last = f" (last: {self.function})" if self.function else ""
        return f"rank {self.rank} (pid {self.pid}) is at {self.has} of {self.others} in {name(self.communicator)}{last}"


@dataclass
class Verdict:
    """reasons: why this is no boundary, one line each; empty: it is one.

    behind: ranks that others wait for. waiting: pids of those who wait for others somewhere. held: members in which a
    thread is held. graphs: whether operations were captured into graphs, whose replays nobody counts.
    """

    reasons: list[str] = field(default_factory=list)
    behind: list[Behind] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    held: list[Member] = field(default_factory=list)
    graphs: bool = False

    @property
    def is_boundary(self) -> bool:
        return not self.reasons

    def reason(self) -> str:
        """The reasons as one line, not too long."""
        more = len(self.reasons) - _NAMED
        return "; ".join(self.reasons[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def name(communicator: int) -> str:
    """How a communicator is called in texts: NCCL's own log prints the same hash."""
    return f"communicator {communicator:016x}"


def judge(snapshot: Snapshot, alive: Alive) -> Verdict:
    """Look at every communicator that has a living member."""
    verdict = Verdict()
    if snapshot.header.notes & NOTE_FULL:
        verdict.reasons.append("the gate's tables are full: not every communicator is known")
    exchanged: dict[tuple[int, int], tuple[int, int]] = {
        (pair.member, pair.peer): (pair.sent, pair.received) for pair in snapshot.pairs
    }
    peers: dict[int, set[int]] = defaultdict(set)
    for pair in snapshot.pairs:
        peers[pair.member].add(pair.peer)
    for member in snapshot.members:
        if member.state is State.JOINING and alive(member.pid):
            _look_at_joining(verdict, member)
    for members in _communicators(snapshot.members):
        living = [member for member in members if member.state is State.PRESENT and alive(member.pid)]
        if living:
            _look(verdict, members, living)
            _look_at_transfers(verdict, {member.rank: member for member in members}, exchanged, peers)
    return verdict


def _communicators(members: Iterable[Member]) -> Iterable[Sequence[Member]]:
    """Who is, or was, a member of each communicator: of a rank that joined more than once, the last one."""
    found: dict[tuple[int, int], dict[int, Member]] = defaultdict(dict)
    for member in members:
        if member.state is State.JOINING:
            continue
        ranks = found[member.communicator, member.ranks]
        if member.rank not in ranks or ranks[member.rank].birth < member.birth:
            ranks[member.rank] = member
    return [list(ranks.values()) for ranks in found.values()]


def _look_at_joining(verdict: Verdict, member: Member) -> None:
    """Held before it has joined, it is no member yet."""
    if member.held:
        verdict.held.append(member)
    if member.is_inside or not member.held:
        verdict.reasons.append(f"rank {member.rank} (pid {member.pid}) is just joining {name(member.communicator)}")


def _look(verdict: Verdict, members: Sequence[Member], living: Sequence[Member]) -> None:
    communicator, ranks = members[0].communicator, members[0].ranks
    if len(members) < ranks:
        verdict.reasons.append(f"{len(members)} of the {ranks} ranks of {name(communicator)} have come to this pod")
    for member in living:
        verdict.graphs |= member.captured > 0
        if member.held:
            verdict.held.append(member)
        if member.is_inside:
            verdict.reasons.append(f"rank {member.rank} (pid {member.pid}) is enqueueing in {name(communicator)}")
        elif member.deferred:
            verdict.reasons.append(
                f"sends or receives of rank {member.rank} in {name(communicator)} are not launched yet"
            )
    least, most = (choose(member.collectives for member in members) for choose in (min, max))
    verdict.waiting.update(member.pid for member in living if member.collectives > least)
    for member in members:
        if member.collectives < most:
            _fall_behind(verdict, member, member.collectives, most, member in living)


def _look_at_transfers(
    verdict: Verdict,
    by_rank: dict[int, Member],
    exchanged: dict[tuple[int, int], tuple[int, int]],
    peers: dict[int, set[int]],
) -> None:
    """What each rank has sent to each other one, and what that one has received."""
    for member in by_rank.values():
        for peer in sorted(peers[member.index]):
            other = by_rank.get(peer)
            if other is None:
                continue  # not in this pod: that is said already
            sent, received = exchanged[member.index, peer]
            their_sent, their_received = exchanged.get((other.index, member.rank), (0, 0))
            # Each of the two is looked at from the other's side as well.
            if sent > their_received or received > their_sent:
                verdict.waiting.add(member.pid)
            if sent > their_received:
                _fall_behind(verdict, other, their_received, sent, True)
            if received > their_sent:
                _fall_behind(verdict, other, their_sent, received, True)


def _fall_behind(verdict: Verdict, member: Member, has: int, others: int, lives: bool) -> None:
    behind = Behind(member.communicator, member.rank, member.pid, has, others, member.function)
    verdict.behind.append(behind)
    verdict.reasons.append(str(behind) if lives else f"{behind}, and has left or died")
