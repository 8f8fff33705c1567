"""Ranks of NCCL's double that run one random program after the other: to start them costs more than most programs."""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import socket
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from slurmckpt.capture.gate import layout
from slurmckpt.capture.gate.region import Region
from tests.unit.awaiting import wait_until
from tests.unit.gate import oracle
from tests.unit.gate.board import MOST_COMMUNICATORS, MOST_OPERATIONS, MOST_STOPS, Board, Case
from tests.unit.gate.nccl import PATIENCE, Nccl, Ranks
from tests.unit.gate.oracle import Numbers, Result
from tests.unit.gate.runner import Run


class Pool:
    """Processes of as many ranks. A context manager: at its end all are gone."""

    def __init__(self, libnccl: Path, ranks: int, environment: Mapping[str, str], gate: Path) -> None:
        self.ranks = ranks
        # One for all: the plugin stays in a process that has loaded it.
        self._gate, self.region = gate, Region.create(gate, -1, -1)
        self.board = Board.from_buffer(mmap.mmap(-1, ctypes.sizeof(Board)))
        self._libnccl, self._environment = libnccl, environment
        self._nccl = Nccl(libnccl)
        self._channels: list[socket.socket] = []
        self._processes: Ranks | None = None

    @contextmanager
    def running(self, case: Case) -> Iterator[None]:
        """All ranks run it, at a gate that knows of none before. Whatever fails within, the next one gets new ranks."""
        if self._processes is None:
            self._start()
        self._gate.write_bytes(layout.empty().ljust(layout.SIZE, b"\0"))
        try:
            self._begin(case)
            yield
        except BaseException:
            self._end()
            raise

    def _start(self) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(self.ranks)]
        self._channels = [ours for ours, _ in pairs]
        self._processes = Ranks(
            self._libnccl,
            self.ranks,
            lambda nccl, rank: _serve(nccl, rank, pairs[rank][1], self.board),
            self._environment,
        )
        for ours, theirs in pairs:
            ours.settimeout(PATIENCE)
            theirs.close()

    def _end(self) -> None:
        for channel in self._channels:
            channel.close()
        if self._processes is not None:
            self._processes.__exit__(None, None, None)
            self._processes = None

    def _begin(self, case: Case) -> None:
        program = case.program
        assert program.ranks == self.ranks and len(program.operations) <= MOST_OPERATIONS
        assert len(program.communicators) <= MOST_COMMUNICATORS and len(case.stops) <= MOST_STOPS
        ctypes.memset(ctypes.byref(self.board), 0, ctypes.sizeof(Board))
        for communicator, members in enumerate(program.communicators):
            for rank in members:
                self.board.sums[rank][communicator][:] = oracle.first(rank, communicator)
        message = pickle.dumps((case, [self._nccl.unique_id() for _ in range(program.initial)]))
        for channel in self._channels:
            channel.send(message)

    def wait_stop(self, number: int) -> None:
        """Until the rank that stops is there, or has passed it while the gate was being closed."""
        wait_until(lambda: self.board.stopped[number], f"the program comes to its stop {number}")

    def go_on(self) -> None:
        """Let the rank that has stopped go on to its next stop."""
        self.board.passed += 1

    def results(self) -> list[Result]:
        """What each rank has in the end. AssertionError when one fails."""
        answers = [pickle.loads(channel.recv(1 << 20)) for channel in self._channels]
        failures = [answer for answer in answers if isinstance(answer, str)]
        assert not failures, failures[0]
        return answers

    def lock(self, rank: int, milliseconds: int) -> int:
        """Zero, or what CUDA's checkpoint interface answers when it is not ready in time."""
        assert self._processes is not None
        return self._processes.each[rank].lock(milliseconds)

    def unlock(self, rank: int) -> None:
        assert self._processes is not None
        self._processes.each[rank].unlock()

    def sum_of(self, rank: int, communicator: int) -> Numbers:
        """What is there now in a rank's device memory."""
        one, other = self.board.sums[rank][communicator]
        return one, other

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self.region.close()


def _serve(nccl: Nccl, rank: int, channel: socket.socket, board: Board) -> None:
    """In a rank: program after program."""
    streams: dict[int, int] = {}
    while message := channel.recv(1 << 20):
        case, ids = pickle.loads(message)
        os.environ["NCCL_DOUBLE_PROFILER"] = str(case.version)
        try:
            answer: object = Run(nccl, case, rank, ids, board, streams).run()
        except BaseException:
            answer = traceback.format_exc()
        channel.send(pickle.dumps(answer))
