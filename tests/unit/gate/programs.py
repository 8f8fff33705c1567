"""Random programs of ranks: one global order of operations, of which each rank runs its part. So none deadlocks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Collective:
    communicator: int


@dataclass(frozen=True)
class Transfer:
    """source and target: ranks in the communicator."""

    communicator: int
    source: int
    target: int


@dataclass(frozen=True)
class Group:
    """One ncclGroupStart ... ncclGroupEnd of each rank that takes part."""

    parts: tuple[Collective | Transfer, ...]


@dataclass(frozen=True)
class Barrier:
    """Of the CPUs of these world ranks, and only after synchronize: after their devices."""

    ranks: tuple[int, ...]
    synchronize: bool


@dataclass(frozen=True)
class Compute:
    """Of one world rank, on the CPU."""

    rank: int
    steps: int


@dataclass(frozen=True)
class Split:
    """A new communicator of some world ranks comes into being; the CPUs of the parent's ranks meet for it."""

    parent: int
    new: int


@dataclass(frozen=True)
class Destroy:
    communicator: int


@dataclass(frozen=True)
class Replay:
    """A graph with one collective: no call of NCCL enqueues it."""

    communicator: int


Operation = Group | Barrier | Compute | Split | Destroy | Replay


@dataclass(frozen=True)
class Program:
    """communicators: world ranks of each, by number; those that are split off come into being on the way."""

    ranks: int
    communicators: Sequence[tuple[int, ...]]
    initial: int
    operations: Sequence[Operation]
    one_stream: bool
    threads: int


@dataclass(frozen=True)
class Kinds:
    """What a program may have in it."""

    splits: bool = True
    replays: bool = False
    threads: bool = True
    barriers: bool = True


def generate(seed: int, ranks: int, length: int, kinds: Kinds = Kinds()) -> Program:
    """The program of this seed."""
    dice = random.Random(seed)
    communicators = [tuple(range(ranks))]
    for _ in range(dice.randrange(3)):
        communicators.append(_subset(dice, range(ranks)))
    initial = len(communicators)
    usable = list(range(initial))
    operations: list[Operation] = []
    for _ in range(length):
        kind = dice.random()
        if kind < 0.55:
            operations.append(Group((Collective(dice.choice(usable)),)))
        elif kind < 0.65:
            operations.append(_group(dice, communicators, usable))
        elif kind < 0.77:
            operations.append(_transfers(dice, communicators, usable))
        elif kind < 0.85 and kinds.barriers:
            operations.append(Barrier(_subset(dice, range(ranks)), dice.random() < 0.5))
        elif kind < 0.92:
            operations.append(Compute(dice.randrange(ranks), dice.randrange(1, 40)))
        elif kind < 0.95 and kinds.splits:
            parent = dice.choice(usable)
            communicators.append(_subset(dice, communicators[parent]))
            operations.append(Split(parent, len(communicators) - 1))
            usable.append(len(communicators) - 1)
        elif kind < 0.97 and kinds.splits and len(usable) > 1:
            operations.append(Destroy(usable.pop(dice.randrange(1, len(usable)))))
        elif kinds.replays:
            operations.append(Replay(dice.choice(usable)))
    threads = dice.choice((1, 1, 2)) if kinds.threads else 1
    return Program(ranks, communicators, initial, operations, dice.random() < 0.5, threads)


def _subset(dice: random.Random, ranks: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(dice.sample(list(ranks), dice.randint(2, len(ranks)))))


def _group(dice: random.Random, communicators: Sequence[tuple[int, ...]], usable: Sequence[int]) -> Group:
    """Several collectives and transfers at once."""
    parts: list[Collective | Transfer] = [Collective(dice.choice(usable)) for _ in range(dice.randint(1, 3))]
    for _ in range(dice.randrange(3)):
        parts += _transfers(dice, communicators, usable).parts
    return Group(tuple(parts))


def _transfers(dice: random.Random, communicators: Sequence[tuple[int, ...]], usable: Sequence[int]) -> Group:
    """One send, a ring, all to all, or a send to itself."""
    communicator = dice.choice(usable)
    size = len(communicators[communicator])
    kind = dice.random()
    if kind < 0.5:
        source, target = dice.sample(range(size), 2)
        return Group((Transfer(communicator, source, target),))
    if kind < 0.75:
        return Group(tuple(Transfer(communicator, rank, (rank + 1) % size) for rank in range(size)))
    everybody = range(size)
    return Group(tuple(Transfer(communicator, source, target) for source in everybody for target in everybody))
