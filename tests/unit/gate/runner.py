"""One rank's part of a random program, on NCCL's double. Its data tell whether everything has met what it should."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_void_p

from tests.unit.gate import oracle
from tests.unit.gate.board import Board, Case
from tests.unit.gate.nccl import Buffer, Communicator, Nccl
from tests.unit.gate.oracle import Numbers, Result
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

NO_COLOR = -1


class SharedBuffer(Buffer):
    """Numbers on the simulated device, which the test sees."""

    def __init__(self, array: ctypes.Array[ctypes.c_double]) -> None:
        self.array = array


class Run:
    """One rank's part of a program."""

    def __init__(
        self, nccl: Nccl, case: Case, rank: int, ids: list[bytes], board: Board, streams: dict[int, int]
    ) -> None:
        self._nccl, self._case, self._program, self._rank, self._board = nccl, case, case.program, rank, board
        # Those of the process: they are never destroyed.
        self._all_streams = streams
        self._communicators: dict[int, Communicator] = {}
        self._streams: dict[int, int | None] = {}
        self._graphs: dict[int, int] = {}
        self._sums: dict[int, Buffer] = {}
        self._received: dict[tuple[int, int], Buffer] = {}
        self._sent: list[Buffer] = []
        self._threads = _threads(self._program)
        for number in range(self._program.initial):
            members = self._program.communicators[number]
            if rank in members:
                self._add(number, nccl.init(len(members), ids[number], members.index(rank)))

    def run(self) -> Result:
        count = self._program.threads
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(self._run, range(count)))
        for communicator in self._communicators.values():
            communicator.destroy()
        return Result(
            {number: _numbers(one) for number, one in self._sums.items()},
            {place: _numbers(one) for place, one in self._received.items()},
        )

    def _add(self, number: int, communicator: Communicator) -> None:
        one = self._program.one_stream and self._program.threads == 1
        self._communicators[number] = communicator
        if not one and number not in self._all_streams:
            self._all_streams[number] = self._nccl.library.double_stream_create()
        self._streams[number] = None if one else self._all_streams[number]
        self._sums[number] = SharedBuffer(self._board.sums[self._rank][number])

    def _run(self, thread: int) -> None:
        stops = self._case.stops if (self._rank, thread) == (self._case.stopping, 0) else ()
        for index, operation in enumerate(self._program.operations):
            if index in stops:
                self._stop(stops.index(index))
            self._perform(thread, index, operation)
        self._synchronize(thread)

    def _stop(self, number: int) -> None:
        """A gate that is being closed waits for this rank: then it does not wait for the next one."""
        self._board.stopped[number] = 1
        while self._board.passed <= number and not self._board.closing:
            time.sleep(0.0003)

    def _perform(self, thread: int, index: int, operation: Operation) -> None:
        program = self._program
        if isinstance(operation, Group):
            parts = [(place, part) for place, part in enumerate(operation.parts) if self._takes_part(thread, part)]
            if parts:
                self._group(index, parts)
        elif isinstance(operation, Replay):
            if self._takes_part(thread, Collective(operation.communicator)):
                self._replay(operation.communicator)
        elif isinstance(operation, Split):
            if self._takes_part(thread, Collective(operation.parent)):
                joins = self._rank in program.communicators[operation.new]
                made = self._communicators[operation.parent].split(0 if joins else NO_COLOR, self._rank)
                if made is not None:
                    self._add(operation.new, made)
        elif isinstance(operation, Destroy):
            if self._takes_part(thread, Collective(operation.communicator)):
                self._nccl.synchronize(self._streams[operation.communicator])
                self._communicators.pop(operation.communicator).destroy()
        elif isinstance(operation, Barrier) and thread == 0 and self._rank in operation.ranks:
            if operation.synchronize:
                self._synchronize(thread)
            self._meet(index, operation.ranks)
        elif isinstance(operation, Compute) and thread == 0 and operation.rank == self._rank:
            time.sleep(operation.steps / 20_000)

    def _group(self, index: int, parts: list[tuple[int, Collective | Transfer]]) -> None:
        is_alone = len(parts) == 1 and isinstance(parts[0][1], Collective)
        if not is_alone:
            self._nccl.group_start()
        for place, part in parts:
            communicator, stream = self._communicators[part.communicator], self._streams[part.communicator]
            if isinstance(part, Collective):
                communicator.all_reduce(self._sums[part.communicator], stream)
            else:
                self._transfer(index, place, part)
        if not is_alone:
            self._nccl.group_end()
        self._count(part.communicator for _, part in parts if isinstance(part, Collective))

    def _transfer(self, index: int, place: int, part: Transfer) -> None:
        communicator, stream = self._communicators[part.communicator], self._streams[part.communicator]
        me = self._program.communicators[part.communicator].index(self._rank)
        sent, received = Buffer(oracle.message(index, part)), Buffer([0.0, 0.0])
        if part.source == part.target and self._case.in_place and index % 2:
            received = sent  # which NCCL drops
        if part.source == me:
            self._sent.append(sent)  # kept until it is sent
            communicator.send(sent, part.target, stream)
        if part.target == me:
            self._received[index, place] = received
            communicator.receive(received, part.source, stream)

    def _replay(self, number: int) -> None:
        library, stream = self._nccl.library, c_void_p(self._streams[number])
        if number not in self._graphs:
            library.double_capture_begin(stream)
            self._communicators[number].all_reduce(self._sums[number], self._streams[number])
            self._graphs[number] = library.double_capture_end(stream)
        library.double_graph_launch(c_void_p(self._graphs[number]), stream)
        self._count([number])

    def _count(self, communicators: Iterable[int]) -> None:
        for number in communicators:
            self._board.enqueued[self._rank][number] += 1

    def _synchronize(self, thread: int) -> None:
        """With what this thread has enqueued: for another's, threads could wait for each other in a circle."""
        for number in [number for number in list(self._streams) if self._threads[number] == thread]:
            self._nccl.synchronize(self._streams[number])

    def _meet(self, index: int, ranks: tuple[int, ...]) -> None:
        met = self._board.met[index]
        met[self._rank] = 1
        while not all(met[rank] for rank in ranks):
            time.sleep(0.0003)

    def _takes_part(self, thread: int, part: Collective | Transfer) -> bool:
        members = self._program.communicators[part.communicator]
        if self._rank not in members or self._threads[part.communicator] != thread:
            return False
        return isinstance(part, Collective) or self._rank in (members[part.source], members[part.target])


def _threads(program: Program) -> list[int]:
    """Which thread of each rank a communicator belongs to: with all that is split off it, to one."""
    threads = [number % program.threads for number in range(len(program.communicators))]
    for operation in program.operations:
        if isinstance(operation, Split):
            threads[operation.new] = threads[operation.parent]
    return threads


def _numbers(buffer: Buffer) -> Numbers:
    one, other = buffer.values
    return one, other
