"""Simulated device, real processes: the double of NCCL loads the gate, and ranks are brought to boundaries."""

from __future__ import annotations

import hashlib
import mmap
import threading
import time
from collections.abc import Mapping
from ctypes import c_void_p
from pathlib import Path

import pytest

from slurmckpt.capture.gate import boundary
from slurmckpt.capture.gate.judge import judge
from slurmckpt.capture.gate.region import Region
from tests.unit.awaiting import wait_until
from tests.unit.gate.nccl import Buffer, Communicator, Nccl, Ranks
from tests.unit.gate.programs import (
    Barrier,
    Collective,
    Compute,
    Destroy,
    Group,
    Kinds,
    Operation,
    Program,
    Replay,
    Split,
    Transfer,
    generate,
)

PATIENCE = boundary.Patience(stall=0.05, total=50.0)
AVERAGE = 4
NO_COLOR = -1


class Runner:
    """One rank of a program on the double. Its data tell at the end whether everything met what it should."""

    def __init__(self, nccl: Nccl, program: Program, rank: int, ids: list[bytes], meetings: mmap.mmap) -> None:
        self._nccl, self._program, self._rank, self._meetings = nccl, program, rank, meetings
        self._communicators: dict[int, Communicator] = {}
        self._streams: dict[int, int | None] = {}
        self._graphs: dict[int, int] = {}
        self._sums: dict[int, Buffer] = {}
        self._received: dict[int, list[Buffer]] = {thread: [] for thread in range(program.threads)}
        for number in range(program.initial):
            members = program.communicators[number]
            if rank in members:
                self._add(number, nccl.init(len(members), ids[number], members.index(rank)))

    def run(self) -> str:
        threads = [threading.Thread(target=self._run, args=(number,)) for number in range(self._program.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        values = [self._sums[number].values for number in sorted(self._sums)]
        values += [one.values for thread in sorted(self._received) for one in self._received[thread]]
        return hashlib.sha256(repr(values).encode()).hexdigest()

    def _add(self, number: int, communicator: Communicator) -> None:
        one = self._program.one_stream and self._program.threads == 1
        self._communicators[number] = communicator
        self._streams[number] = None if one else self._nccl.library.double_stream_create()
        self._sums[number] = Buffer([self._rank + 1.0, number * 7.0])

    def _run(self, thread: int) -> None:
        operations = self._program.operations
        for index, operation in enumerate(operations):
            # The test lets it go.
            while self._rank == 0 and index == len(operations) // 2 and not self._meetings[-1]:
                time.sleep(0.0005)
            self._perform(thread, index, operation)
        self._synchronize(thread)

    def _perform(self, thread: int, index: int, operation: Operation) -> None:
        program = self._program
        if isinstance(operation, Group):
            parts = [part for part in operation.parts if self._takes_part(thread, part)]
            if parts:
                self._group(thread, parts)
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
                self._communicators[operation.communicator].destroy()
        elif isinstance(operation, Barrier) and thread == 0 and self._rank in operation.ranks:
            if operation.synchronize:
                self._synchronize(thread)
            self._meet(index, operation.ranks)
        elif isinstance(operation, Compute) and thread == 0 and operation.rank == self._rank:
            time.sleep(operation.steps / 5_000)

    def _group(self, thread: int, parts: list[Collective | Transfer]) -> None:
        if len(parts) > 1 or isinstance(parts[0], Transfer):
            self._nccl.group_start()
        for part in parts:
            communicator, stream = self._communicators[part.communicator], self._streams[part.communicator]
            me = self._program.communicators[part.communicator].index(self._rank)
            if isinstance(part, Collective):
                communicator.all_reduce(self._sums[part.communicator], stream, AVERAGE)
                continue
            if part.source == me:
                communicator.send(self._sent(part), part.target, stream)
            if part.target == me:
                self._received[thread].append(Buffer([0.0, 0.0]))
                communicator.receive(self._received[thread][-1], part.source, stream)
        if len(parts) > 1 or isinstance(parts[0], Transfer):
            self._nccl.group_end()

    def _sent(self, part: Transfer) -> Buffer:
        # Not how many communicators there are by now: that depends on what the other thread has done.
        buffer = Buffer([part.source * 100.0 + part.target, part.communicator])
        self._received[self._thread_of(part.communicator)].append(buffer)  # kept until it is sent
        return buffer

    def _replay(self, number: int) -> None:
        library, stream = self._nccl.library, c_void_p(self._streams[number])
        if number not in self._graphs:
            library.double_capture_begin(stream)
            self._communicators[number].all_reduce(self._sums[number], self._streams[number], AVERAGE)
            self._graphs[number] = library.double_capture_end(stream)
        library.double_graph_launch(c_void_p(self._graphs[number]), stream)

    def _synchronize(self, thread: int) -> None:
        for number in [number for number in list(self._streams) if self._thread_of(number) == thread]:
            self._nccl.synchronize(self._streams[number])

    def _meet(self, index: int, ranks: tuple[int, ...]) -> None:
        size = self._program.ranks
        self._meetings[index * size + self._rank] = 1
        while not all(self._meetings[index * size + rank] for rank in ranks):
            time.sleep(0.0003)

    def _takes_part(self, thread: int, part: Collective | Transfer) -> bool:
        members = self._program.communicators[part.communicator]
        if self._rank not in members or self._thread_of(part.communicator) != thread:
            return False
        return isinstance(part, Collective) or members.index(self._rank) in (part.source, part.target)

    def _thread_of(self, communicator: int) -> int:
        for operation in self._program.operations:
            if isinstance(operation, Split) and operation.new == communicator:
                return self._thread_of(operation.parent)
        return communicator % self._program.threads


def start(libnccl: Path, program: Program, environment: Mapping[str, str], meetings: mmap.mmap) -> Ranks:
    """meetings: see meeting_place()."""
    ids = [Nccl(libnccl).unique_id() for _ in program.communicators]
    return Ranks(
        libnccl, program.ranks, lambda nccl, rank: Runner(nccl, program, rank, ids, meetings).run(), environment
    )


def meeting_place(program: Program, goes: bool) -> mmap.mmap:
    """Where ranks meet on the CPU. The last byte: whether rank 0 goes on in the middle of the program."""
    place = mmap.mmap(-1, len(program.operations) * program.ranks + 1)
    place[-1] = goes
    return place


def reference(libnccl: Path, program: Program) -> list[str]:
    """What the ranks have at the end when nobody disturbs them."""
    with start(libnccl, program, {"NCCL_PROFILER_PLUGIN": "none"}, meeting_place(program, True)) as ranks:
        return ranks.results()


def gated(built: Path, path: Path) -> dict[str, str]:
    return {
        "NCCL_PROFILER_PLUGIN": str(built / "libnccl-profiler-slurmckpt.so"),
        "SLURM_CKPT_GATE": str(path),
        "SLURM_CKPT_GATE_NEXT": "none",
    }


def alive(pid: int) -> bool:
    """Whether there is such a process that is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def close(region: Region, place: mmap.mmap) -> boundary.Closing:
    """Bring the ranks to a boundary. Only when the gate is closed rank 0 is sure to go on."""
    closing = boundary.Closing(region, alive, PATIENCE)
    closing.begin(time.monotonic())
    place[-1] = 1
    while (answer := closing.step(time.monotonic())) is False:
        time.sleep(0.002)
    assert answer is True, answer
    return closing


def lock_all(ranks: Ranks, milliseconds: int) -> list[int]:
    """One after the other: the naive way. Unlocks all again."""
    answers = [rank.lock(milliseconds) for rank in ranks.each]
    for rank, answer in zip(ranks.each, answers, strict=True):
        if answer == 0:
            rank.unlock()
    return answers


def total(region: Region) -> int:
    """How many operations all ranks have enqueued."""
    return sum(member.collectives + member.transfers for member in region.snapshot().members)


@pytest.mark.parametrize("version", ["5", "6", "7"])
@pytest.mark.parametrize("late", ["0", "1"])
@pytest.mark.parametrize("seed", range(8))
def test_at_a_boundary_rank_after_rank_can_be_locked(
    seed: int, late: str, version: str, libnccl: Path, built: Path, tmp_path: Path
) -> None:
    program = generate(seed, (2, 4, 8)[seed % 3], 120)
    expected, place = reference(libnccl, program), meeting_place(program, False)
    environment = gated(built, tmp_path / "gate") | {
        "NCCL_DOUBLE_PROFILER": version,
        "NCCL_DOUBLE_HOST_CALLBACK": late,
    }
    with Region.create(tmp_path / "gate", -1, -1) as region, start(libnccl, program, environment, place) as ranks:
        done = []
        wait_until(lambda: total(region) > 0, "the ranks begin")
        for _ in range(3):
            closing = close(region, place)
            done.append(total(region))
            assert lock_all(ranks, 20_000) == [0] * program.ranks
            assert closing.still_holds()
            closing.open()
            # So that the next one is elsewhere; unless it is over already.
            end = time.monotonic() + 0.05
            while total(region) < done[-1] + 10 and time.monotonic() < end:
                time.sleep(0.001)
        assert ranks.results() == expected
        assert done[0] < total(region), "the boundary came after the end"
        assert judge(region.snapshot(), lambda pid: True).is_boundary


def test_replays_of_graphs_are_not_seen_but_a_lock_that_hangs_is_given_up(
    libnccl: Path, built: Path, tmp_path: Path
) -> None:
    """The gate says that graphs are in use; the lock's timeout decides, and nothing is left locked."""
    program = generate(3, 2, 400, Kinds(splits=False, replays=True))
    expected, place = reference(libnccl, program), meeting_place(program, False)
    with (
        Region.create(tmp_path / "gate", -1, -1) as region,
        start(libnccl, program, gated(built, tmp_path / "gate"), place) as ranks,
    ):
        wait_until(lambda: any(one.captured for one in region.snapshot().members), "a graph is captured")
        closing = close(region, place)
        assert closing.graphs
        answers = lock_all(ranks, 300)
        closing.open()
        assert set(answers) <= {0, 600}
        assert ranks.results() == expected


def test_a_process_with_several_ranks(libnccl: Path, built: Path, tmp_path: Path) -> None:
    """ncclCommInitAll: one thread enqueues for all of them, in groups."""
    goes = mmap.mmap(-1, 1)

    def main(nccl: Nccl, rank: int) -> list[float]:
        handles = (c_void_p * 3)()
        assert nccl.library.ncclCommInitAll(handles, 3, None) == 0
        communicators = [Communicator(nccl.library, c_void_p(handle)) for handle in handles]
        streams = [nccl.library.double_stream_create() for _ in communicators]
        buffers = [Buffer([float(number)]) for number in range(3)]
        for step in range(200):
            while step == 100 and not goes[0]:
                time.sleep(0.001)
            nccl.group_start()
            for communicator, buffer, stream in zip(communicators, buffers, streams, strict=True):
                communicator.all_reduce(buffer, stream, AVERAGE)
            nccl.group_end()
        for stream in streams:
            nccl.synchronize(stream)
        return [buffer.values[0] for buffer in buffers]

    with (
        Region.create(tmp_path / "gate", -1, -1) as region,
        Ranks(libnccl, 1, main, gated(built, tmp_path / "gate")) as ranks,
    ):
        wait_until(lambda: total(region) > 30, "it runs")
        closing = close(region, goes)
        assert lock_all(ranks, 20_000) == [0]
        members = region.snapshot().members
        assert sorted(one.rank for one in members) == [0, 1, 2]
        assert len({one.collectives for one in members}) == 1 and members[0].collectives < 200
        closing.open()
        assert ranks.results() == ["[1.0, 1.0, 1.0]"]
