"""Random programs, step by step: the real gate (C), the real coordinator's side (Python), on a simulated device.

Every step of every thread is a point at which any other may go on; time is counted in steps.
"""

from __future__ import annotations

import enum
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from slurmckpt.capture.gate import boundary
from slurmckpt.capture.gate.region import Region
from tests.unit.gate.core import Core, Process, Thread
from tests.unit.gate.device import Devices, Meeting
from tests.unit.gate.programs import (
    Barrier,
    Collective,
    Compute,
    Destroy,
    Group,
    Operation,
    Program,
    Replay,
    Split,
    Transfer,
)

STEP_SECONDS = 0.001
PATIENCE = boundary.Patience(stall=0.3, total=60.0)


class Can(enum.Enum):
    """What a thread says between two steps."""

    GO = "go on"
    WAIT = "wait for somebody on the CPU"
    HELD = "wait at the gate"


class Simulation:
    """One run of a program. gated: whether its ranks have a gate."""

    def __init__(self, core: Core, path: Path, program: Program, seed: int, gated: bool = True) -> None:
        self.program = program
        self.devices = Devices()
        self.dice = random.Random(seed)
        self.now = 0.0
        self.locked: set[int] = set()
        self.region = Region.create(path, -1, -1)
        self._gated = gated
        self._processes = [Process(core, path, 100 + rank) for rank in range(program.ranks)]
        self._handles: dict[tuple[int, int], int] = {}
        self._arrived: Counter[tuple[str, int]] = Counter()
        self._left: Counter[int] = Counter()
        for number in range(program.initial):
            for rank in program.communicators[number]:
                assert list(self._join(rank, number)) == []
        self.threads: dict[tuple[int, int], Iterator[Can]] = {
            (rank, thread): self._run(rank, thread)
            for rank in range(program.ranks)
            for thread in range(program.threads)
        }
        self.states: dict[tuple[int, int], Can] = dict.fromkeys(self.threads, Can.GO)

    def close(self) -> None:
        for process in self._processes:
            process.close()
        self.region.close()

    @property
    def is_over(self) -> bool:
        return not self.threads

    def step(self) -> None:
        """One step of one thread that is not locked."""
        self.now += STEP_SECONDS
        free = [key for key in self.threads if key[0] not in self.locked]
        if free:
            self.advance(self.dice.choice(free))

    def advance(self, key: tuple[int, int]) -> None:
        try:
            self.states[key] = next(self.threads[key])
        except StopIteration:
            del self.threads[key], self.states[key]

    def run(self, condition: Callable[[], bool], most: int) -> bool:
        """Steps until the condition holds. False: not within so many."""
        for _ in range(most):
            if condition():
                return True
            self.step()
        return condition()

    def finish(self) -> bool:
        """Whether the program comes to its end."""
        length = len(self.program.operations) + 10
        return self.run(lambda: self.is_over and self.devices.is_idle(), 400 * length * self.program.ranks)

    def close_gate(self, closing: boundary.Closing) -> bool | boundary.NoBoundary:
        """Let the coordinator look now and then, between the steps of the ranks, until it says something."""
        closing.begin(self.now)
        answer: bool | boundary.NoBoundary = False
        while answer is False:
            for _ in range(self.dice.randrange(1, 8)):
                self.step()
            answer = closing.step(self.now)
        return answer

    # What a rank does.

    def _join(self, rank: int, communicator: int) -> Iterator[Can]:
        if self._gated:
            members, process = self.program.communicators[communicator], self._processes[rank]
            handle = process.join(1000 + communicator, len(members), members.index(rank))
            assert handle
            passes = process.try_join(handle)
            while not passes:
                yield Can.HELD
                passes = process.retry_join(handle)
            self._handles[rank, communicator] = handle

    def _run(self, rank: int, number: int) -> Iterator[Can]:
        thread = self._processes[rank].thread(100 + number)
        for index, operation in enumerate(self.program.operations):
            yield Can.GO
            yield from self._perform(rank, number, thread, index, operation)

    def _perform(self, rank: int, number: int, thread: Thread, index: int, operation: Operation) -> Iterator[Can]:
        program = self.program
        if isinstance(operation, Group):
            mine = [part for part in operation.parts if self._takes_part(rank, number, part)]
            if mine:
                yield from self._group(rank, thread, mine)
        elif isinstance(operation, Replay):
            if self._takes_part(rank, number, Collective(operation.communicator)):
                self._launch(rank, [Collective(operation.communicator)])
        elif isinstance(operation, Destroy):
            if self._takes_part(rank, number, Collective(operation.communicator)):
                yield from self._synchronize(rank, number)
                if self._gated:
                    self._processes[rank].leave(self._handles.pop((rank, operation.communicator)))
        elif isinstance(operation, Split):
            if self._takes_part(rank, number, Collective(operation.parent)):
                yield from self._meet(("split", index), len(program.communicators[operation.parent]))
                if rank in program.communicators[operation.new]:
                    yield from self._join(rank, operation.new)
                    # The rest of the initialization needs all of its members.
                    yield from self._meet(("join", index), len(program.communicators[operation.new]))
        elif isinstance(operation, Barrier):
            # One thread of each rank, so that no two wait for each other in a circle.
            if number == 0 and rank in operation.ranks:
                if operation.synchronize:
                    yield from self._synchronize(rank, number)
                yield from self._meet(("barrier", index), len(operation.ranks))
        elif isinstance(operation, Compute) and number == 0 and rank == operation.rank:
            for _ in range(operation.steps):
                yield Can.GO

    def _synchronize(self, rank: int, number: int) -> Iterator[Can]:
        """Wait for what this thread has enqueued: for another's, threads could wait for each other in a circle."""
        own = [one for one in self.devices.streams if one[0] == rank]
        own = [one for one in own if one[1] is None or self._thread_of(one[1]) == number]
        while any(self.devices.streams[one] for one in own):
            yield Can.WAIT

    def _takes_part(self, rank: int, number: int, part: Collective | Transfer) -> bool:
        members = self.program.communicators[part.communicator]
        if rank not in members or self._thread_of(part.communicator) != number:
            return False
        return isinstance(part, Collective) or members.index(rank) in (part.source, part.target)

    def _thread_of(self, communicator: int) -> int:
        """A communicator and all that is split off it belong to one thread of each rank."""
        for operation in self.program.operations:
            if isinstance(operation, Split) and operation.new == communicator:
                return self._thread_of(operation.parent)
        return communicator % self.program.threads

    def _meet(self, what: tuple[str, int], size: int) -> Iterator[Can]:
        self._arrived[what] += 1
        while self._arrived[what] < size:
            yield Can.WAIT

    def _group(self, rank: int, thread: Thread, parts: list[Collective | Transfer]) -> Iterator[Can]:
        if not self._gated:
            self._launch(rank, parts)
            return
        first = self._handles[rank, parts[0].communicator]
        passes = thread.try_enter(first)
        while not passes:
            yield Can.HELD
            passes = thread.retry(first)
        yield Can.GO
        sides: list[tuple[int, bool, int]] = []
        for part in parts:
            handle = self._handles[rank, part.communicator]
            if isinstance(part, Collective):
                thread.collective(handle)
            else:
                for sends, peer in self._sides(rank, part):
                    thread.transfer(handle, sends)
                    sides.append((handle, sends, peer))
            if self.dice.random() < 0.3:
                yield Can.GO
        for handle, sends, peer in sides:
            own = any(
                peer == other and handle == self._handles[rank, part.communicator]
                for part, other in self._selves(rank, parts)
            )
            # NCCL drops what is sent to itself in place.
            if not own or self.dice.random() < 0.5:
                thread.peer(handle, sends, peer)
        if self.dice.random() < 0.3:
            yield Can.GO
        self._launch(rank, parts)
        if self.dice.random() < 0.3:
            yield Can.GO
        thread.exit()

    def _sides(self, rank: int, part: Transfer) -> list[tuple[bool, int]]:
        """What a rank calls for a transfer: a send, a receive, or both. With the peer."""
        me = self.program.communicators[part.communicator].index(rank)
        sides = [(True, part.target)] if part.source == me else []
        return sides + ([(False, part.source)] if part.target == me else [])

    def _selves(self, rank: int, parts: list[Collective | Transfer]) -> list[tuple[Transfer, int]]:
        members = self.program.communicators
        return [
            (part, part.source)
            for part in parts
            if isinstance(part, Transfer) and part.source == part.target == members[part.communicator].index(rank)
        ]

    def _launch(self, rank: int, parts: list[Collective | Transfer]) -> None:
        """As NCCL: of each communicator one kernel for its transfers, and one for each collective before."""
        transfers: dict[int, dict[Meeting, int]] = defaultdict(dict)
        for part in parts:
            number = part.communicator
            if isinstance(part, Collective):
                meeting = self.devices.meeting(rank, "collective", number)
                self.devices.enqueue(rank, self._stream(number), {meeting: len(self.program.communicators[number])})
            elif part.source != part.target:
                meeting = self.devices.meeting(rank, "transfer", number, part.source, part.target)
                transfers[number][meeting] = 2
        for number, meetings in transfers.items():
            self.devices.enqueue(rank, self._stream(number), meetings)

    def _stream(self, communicator: int) -> int | None:
        return None if self.program.one_stream and self.program.threads == 1 else communicator
