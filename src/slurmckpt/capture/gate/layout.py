"""The gate's shared memory as bytes (gate/layout.h). Nothing in it is taken for granted: the user may write there."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = 0x657461672D6D6C73
VERSION = 1
MEMBERS = 1024
PAIRS = 8192

# Native byte order: the file never leaves the node's architecture, as a checkpoint does not.
_FIXED = struct.Struct("=QIII4x")
_REQUEST = struct.Struct("=IIIII20x")
_RANKS = struct.Struct("=IIIIII40x")
_MEMBER = struct.Struct("=QQ10I5Q32x")
_PAIR = struct.Struct("=QII2Q")

HEADER_SIZE = _FIXED.size + _REQUEST.size + _RANKS.size
MEMBER_SIZE = _MEMBER.size
PAIR_SIZE = _PAIR.size
MEMBERS_AT = HEADER_SIZE
PAIRS_AT = MEMBERS_AT + MEMBERS * MEMBER_SIZE
SIZE = PAIRS_AT + PAIRS * PAIR_SIZE

# Offsets of what the coordinator writes: 32 bits each.
CLOSED_AT = _FIXED.size
EPOCH_AT = CLOSED_AT + 4
BEAT_AT = CLOSED_AT + 8
LEASE_AT = CLOSED_AT + 12
WIDE_AT = CLOSED_AT + 16
_GRANTED_AT = 36  # within a member

NOTE_FULL = 1
NOTE_CHAIN_LOST = 2

# The order of gate/functions.c.
_FUNCTIONS = (
    "",
    "Broadcast",
    "Reduce",
    "AllGather",
    "ReduceScatter",
    "AllReduce",
    "SendRecv",
    "Send",
    "Recv",
    "AlltoAll",
    "Scatter",
    "Gather",
)


class State(enum.IntEnum):
    """What a member's place is used for."""

    FREE = 0
    JOINING = 1
    PRESENT = 2
    LEFT = 3


@dataclass(frozen=True)
class Header:
    """The request, and what the ranks say of all. lease_ms: milliseconds."""

    closed: bool
    epoch: int
    beat: int
    lease_ms: int
    wide: bool
    expired: int
    births: int
    members_used: int
    pairs_used: int
    notes: int


@dataclass(frozen=True)
class Member:
    """A communicator as one rank sees it; the counters are those of gate/layout.h. pid: inside the pod."""

    index: int
    pid: int
    state: State
    communicator: int
    ranks: int
    rank: int
    birth: int
    thread: int
    held: int
    granted: int
    taken: int
    captured: int
    function: str
    deferred: int
    entries: int
    exits: int
    collectives: int
    transfers: int
    elements: int

    @property
    def is_inside(self) -> bool:
        """Whether one of its threads is between entering a group and having it enqueued."""
        return self.entries != self.exits

    @property
    def granted_at(self) -> int:
        """Offset of its word `granted` in the region."""
        return MEMBERS_AT + self.index * MEMBER_SIZE + _GRANTED_AT


@dataclass(frozen=True)
class Pair:
    """What the member at `member` has exchanged with one peer."""

    member: int
    peer: int
    sent: int
    received: int


@dataclass(frozen=True)
class Snapshot:
    """All of it, read once. Not one moment: who wants that, compares two (boundary.py)."""

    header: Header
    members: tuple[Member, ...]
    pairs: tuple[Pair, ...]


def empty() -> bytes:
    """The content of a new region's header; the rest is zero."""
    return _FIXED.pack(MAGIC, VERSION, MEMBERS, PAIRS) + bytes(_REQUEST.size + _RANKS.size)


def header(data: bytes) -> Header | None:
    """The header, or None when this is no region of this version."""
    if len(data) < HEADER_SIZE or _FIXED.unpack_from(data) != (MAGIC, VERSION, MEMBERS, PAIRS):
        return None
    closed, epoch, beat, lease, wide = _REQUEST.unpack_from(data, CLOSED_AT)
    _, expired, births, members_used, pairs_used, notes = _RANKS.unpack_from(data, CLOSED_AT + _REQUEST.size)
    return Header(
        closed=closed != 0,
        epoch=epoch,
        beat=beat,
        lease_ms=lease,
        wide=wide != 0,
        expired=expired,
        births=births,
        members_used=min(members_used, MEMBERS),
        pairs_used=min(pairs_used, PAIRS),
        notes=notes,
    )


def members(data: bytes) -> Iterator[Member]:
    """The places in use of a table of members."""
    for index, words in enumerate(_MEMBER.iter_unpack(data)):
        owner, communicator, ranks, rank, birth, thread, held, granted, taken, captured, function, *rest = words
        deferred, entries, exits, collectives, transfers, elements = rest
        if owner & 0xFF not in (State.JOINING, State.PRESENT, State.LEFT):
            continue
        yield Member(
            index=index,
            pid=owner >> 8,
            state=State(owner & 0xFF),
            communicator=communicator,
            ranks=ranks,
            rank=rank,
            birth=birth,
            thread=thread,
            held=held,
            granted=granted,
            taken=taken,
            captured=captured,
            function=_FUNCTIONS[function] if function < len(_FUNCTIONS) else "",
            deferred=deferred,
            entries=entries,
            exits=exits,
            collectives=collectives,
            transfers=transfers,
            elements=elements,
        )


def pairs(data: bytes, known: dict[int, Member]) -> Iterator[Pair]:
    """The pairs of a table that belong to one of the `known` members, by index."""
    for owner, peer, _, sent, received in _PAIR.iter_unpack(data):
        member = known.get((owner & 0xFFFFFFFF) - 1)
        if member is not None and member.birth == owner >> 32:
            yield Pair(member.index, peer, sent, received)
