"""Simulated device, real processes: the double of NCCL loads the gate, and ranks are brought to boundaries."""

from __future__ import annotations

import mmap
import time
from ctypes import c_void_p
from pathlib import Path

from slurmckpt.capture.gate import boundary
from slurmckpt.capture.gate.region import Region
from tests.unit.awaiting import wait_until
from tests.unit.gate.nccl import Buffer, Communicator, Nccl, Ranks

PATIENCE = boundary.Patience(stall=0.05, total=50.0)
AVERAGE = 4


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
