"""What a random program computes, told without running it: the data of each rank in the end, and on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.unit.gate.programs import Collective, Group, Program, Replay, Transfer

# Of each sum, and of each message.
Numbers = tuple[float, float]


@dataclass
class Result:
    """What a rank has in the end. sums: by communicator; received: by operation, and place in its group."""

    sums: dict[int, Numbers] = field(default_factory=dict)
    received: dict[tuple[int, int], Numbers] = field(default_factory=dict)


def first(rank: int, communicator: int) -> Numbers:
    """What a world rank brings into a communicator. Different on all, so that it shows whether they have met."""
    return rank + 1.0, (rank + 2.0) * (communicator + 3.0)


def message(index: int, part: Transfer) -> Numbers:
    """What is sent by the operation of this index."""
    return index + 1.0, part.source * 100.0 + part.target


def sums(program: Program, communicator: int, collectives: int) -> Numbers:
    """What all its ranks have after so many sums over them, at least one. Exact: added up as the ranks do."""
    members = program.communicators[communicator]
    values = [first(rank, communicator) for rank in members]
    for _ in range(collectives):
        total = values[0]
        for other in values[1:]:
            total = (total[0] + other[0], total[1] + other[1])
        values = [total] * len(members)
    return values[0]


def collectives(program: Program, replays: bool = True) -> dict[int, int]:
    """How many each communicator sees in the whole program. replays: with those in graphs."""
    counts = dict.fromkeys(range(len(program.communicators)), 0)
    for operation in program.operations:
        parts = operation.parts if isinstance(operation, Group) else ()
        if isinstance(operation, Replay) and replays:
            parts = (Collective(operation.communicator),)
        for part in parts:
            counts[part.communicator] += isinstance(part, Collective)
    return counts


def results(program: Program) -> list[Result]:
    """Of each rank, when the program has come to its end."""
    expected = [Result() for _ in range(program.ranks)]
    for communicator, count in collectives(program).items():
        for rank in program.communicators[communicator]:
            expected[rank].sums[communicator] = (
                sums(program, communicator, count) if count else first(rank, communicator)
            )
    for index, operation in enumerate(program.operations):
        for place, part in enumerate(operation.parts if isinstance(operation, Group) else ()):
            if isinstance(part, Transfer):
                target = program.communicators[part.communicator][part.target]
                expected[target].received[index, place] = message(index, part)
    return expected


class Progress:
    """Tells from a rank's sum how many collectives of a communicator have reached it."""

    def __init__(self, program: Program) -> None:
        self._known = {
            communicator: {sums(program, communicator, done): done for done in range(1, count + 1)}
            for communicator, count in collectives(program).items()
        }

    def of(self, rank: int, communicator: int, values: Numbers) -> int:
        """Raises KeyError for data that no moment of the program has."""
        return 0 if values == first(rank, communicator) else self._known[communicator][values]
