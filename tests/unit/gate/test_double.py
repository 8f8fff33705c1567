"""The double of NCCL does to data what NCCL does, and waits where NCCL waits. Simulated device."""

from __future__ import annotations

import ast
import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path

from tests.unit.awaiting import wait_until
from tests.unit.gate.nccl import NOT_READY, Buffer, Communicator, Nccl, Ranks

RANKS = 4
MAXIMUM = 2
ALONE = {"NCCL_PROFILER_PLUGIN": "none"}


def on_ranks(libnccl: Path, main: Callable[[Nccl, Communicator, int], object], count: int = RANKS) -> list[object]:
    """What each rank's main returned."""
    unique = Nccl(libnccl).unique_id()

    def whole(nccl: Nccl, rank: int) -> object:
        communicator = nccl.init(count, unique, rank)
        result = main(nccl, communicator, rank)
        nccl.synchronize()
        communicator.destroy()
        return result

    with Ranks(libnccl, count, whole, ALONE) as ranks:
        return [ast.literal_eval(result) for result in ranks.results()]


def test_all_reduce_in_place_and_in_order(libnccl: Path) -> None:
    def main(nccl: Nccl, communicator: Communicator, rank: int) -> object:
        # More than one chunk.
        buffer = Buffer([float(rank + index) for index in range(5000)])
        for _ in range(3):
            communicator.all_reduce(buffer)
        nccl.synchronize()
        return buffer.values[:2] + buffer.values[-1:]

    total = [float(sum(rank + index for rank in range(RANKS)) * RANKS**2) for index in (0, 1, 4999)]
    assert on_ranks(libnccl, main) == [total] * RANKS


def test_every_collective(libnccl: Path) -> None:
    def main(nccl: Nccl, communicator: Communicator, rank: int) -> object:
        one, many, results = Buffer([float(rank)]), Buffer([rank * 10.0 + index for index in range(RANKS)]), []
        for name, send, size, more in (
            ("ncclBroadcast", one, 1, (2,)),
            ("ncclReduce", one, 1, (0, 1)),
            ("ncclAllGather", one, RANKS, ()),
            ("ncclReduceScatter", many, 1, (0,)),
            ("ncclAlltoAll", many, RANKS, ()),
            ("ncclGather", one, RANKS, (3,)),
            ("ncclScatter", many, 1, (1,)),
        ):
            receive = Buffer([-1.0] * size)
            communicator.collective(name, send, receive, 1, *more)
            nccl.synchronize()
            results.append(receive.values)
        return results

    everybody = [float(rank) for rank in range(RANKS)]
    for rank, results in enumerate(on_ranks(libnccl, main)):
        assert results == [
            [2.0],
            [6.0] if rank == 1 else [-1.0],
            everybody,
            [60.0 + 4 * rank],
            [10.0 * other + rank for other in range(RANKS)],
            everybody if rank == 3 else [-1.0] * RANKS,
            [10.0 + rank],
        ]


def test_a_ring_in_one_group_and_a_split(libnccl: Path) -> None:
    def main(nccl: Nccl, communicator: Communicator, rank: int) -> object:
        sent, received = Buffer([float(rank)] * 3000), Buffer([0.0] * 3000)
        nccl.group_start()
        communicator.send(sent, (rank + 1) % RANKS)
        communicator.receive(received, (rank - 1) % RANKS)
        nccl.group_end()
        part = communicator.split(rank % 2, -rank)
        assert part is not None
        total = Buffer([float(rank)])
        part.all_reduce(total)
        nccl.synchronize()
        part.destroy()
        return [received.values[2999], total.values[0]]

    assert on_ranks(libnccl, main) == [[3.0, 2.0], [0.0, 4.0], [1.0, 2.0], [2.0, 4.0]]


def test_a_graph_enqueues_without_a_call(libnccl: Path) -> None:
    def main(nccl: Nccl, communicator: Communicator, rank: int) -> object:
        stream, buffer = nccl.library.double_stream_create(), Buffer([1.0])
        nccl.library.double_capture_begin(stream_pointer(stream))
        communicator.all_reduce(buffer, stream)
        graph = nccl.library.double_capture_end(stream_pointer(stream))
        before = buffer.values[0]
        for _ in range(3):
            nccl.library.double_graph_launch(stream_pointer(graph), stream_pointer(stream))
        nccl.synchronize(stream)
        return [before, buffer.values[0]]

    assert on_ranks(libnccl, main) == [[1.0, float(RANKS**3)]] * RANKS


def stream_pointer(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(address)


def test_locking_one_rank_after_the_other_hangs_as_it_does_with_cuda(libnccl: Path) -> None:
    """The first lock succeeds. The second one waits for a kernel that waits for the first rank."""
    unique = Nccl(libnccl).unique_id()
    rounds = mmap.mmap(-1, 2)

    def main(nccl: Nccl, rank: int) -> object:
        communicator, buffer = nccl.init(2, unique, rank), Buffer([1.0])
        while True:
            for _ in range(20):
                communicator.all_reduce(buffer, operation=MAXIMUM)
            nccl.synchronize()
            rounds[rank] = 1

    with Ranks(libnccl, 2, main, ALONE) as ranks:
        wait_until(lambda: rounds[:] == b"\1\1", "both ranks run")
        first, second = ranks.each
        assert first.lock(5000) == 0
        answer = second.lock(500)
        while answer == 0:  # it had nothing enqueued at that moment
            second.unlock()
            answer = second.lock(500)
        assert answer == NOT_READY
        # Not left locked: it runs, and waits for the first one.
        first.unlock()
        assert second.lock(5000) == 0
        second.unlock()
