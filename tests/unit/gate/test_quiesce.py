"""Bringing the pods of a cut to a boundary: with the real gate, on ranks of threads."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from slurmckpt.capture.gate import layout
from slurmckpt.capture.gate.region import Region
from slurmckpt.config import Gate
from slurmckpt.coordinator import gating, quiesce
from slurmckpt.coordinator.choice import Skipped
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.pod_init import PodSettings
from tests.unit.awaiting import PATIENCE, until, wait_until
from tests.unit.gate.core import Core, Process

SETTINGS = Gate(patience=1.0, attempts=2)


def pod(shm: Path, step: str) -> Pod:
    made = Pod(step, os.getuid(), os.getgid(), [], PodSettings(shm, shm, shm, True))
    made.init_pid = os.getpid()
    return made


class Worker:
    """A rank of two, in a thread: one operation after the other until it is stopped."""

    def __init__(self, core: Core, path: Path, rank: int, operations: int) -> None:
        self._process = Process(core, path, os.getpid() if rank == 0 else os.getppid())
        self._handle = self._process.join(9, 2, rank)
        assert self._process.try_join(self._handle)
        self._left = operations
        self.thread = threading.Thread(target=self._run, args=(rank,))
        self.thread.start()

    def _run(self, rank: int) -> None:
        thread = self._process.thread(rank + 1)
        for _ in range(self._left):
            thread.enter(self._handle)
            thread.collective(self._handle)
            thread.exit()
            time.sleep(0.001)


def counts(path: Path) -> list[int]:
    with Region.open(path) as region:
        return [one.collectives for one in region.snapshot().members]


def test_pods_without_a_gate_need_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with quiesce.quiesce([pod(tmp_path, "0")], tmp_path, SETTINGS) as quiesced:
            assert quiesced.since == 0.0
            quiesced.check()

    asyncio.run(scene())


def test_ranks_stand_within_and_go_on_after(tmp_path: Path, core: Core) -> None:
    path = gating.path_of(tmp_path, "0")
    Region.create(path, -1, -1).close()
    workers = [Worker(core, path, rank, 300) for rank in (0, 1)]

    async def scene() -> None:
        async with quiesce.quiesce([pod(tmp_path, "0")], tmp_path, SETTINGS) as quiesced:
            quiesced.check()
            stand = counts(path)
            assert stand[0] == stand[1] and quiesced.since > 0
            await asyncio.sleep(0.05)
            assert counts(path) == stand
            quiesced.check()

    asyncio.run(scene())
    for worker in workers:
        worker.thread.join()
    assert counts(path) == [300, 300]


def test_a_rank_that_does_not_come_is_named_and_nobody_stays_held(tmp_path: Path, core: Core) -> None:
    path = gating.path_of(tmp_path, "0")
    Region.create(path, -1, -1).close()
    workers = [Worker(core, path, 0, 5), Worker(core, path, 1, 0)]
    wait_until(lambda: counts(path) == [5, 0], "rank 0 is ahead")
    # The other pod could stand: it is let go, too.
    Region.create(gating.path_of(tmp_path, "1"), -1, -1).close()

    async def scene() -> None:
        async with quiesce.quiesce([pod(tmp_path, "0"), pod(tmp_path, "1")], tmp_path, SETTINGS):
            pytest.fail("there is no boundary")

    with pytest.raises(Skipped, match=r"^NO_BOUNDARY: no boundary within 1 s: rank 1 \(pid \d+\) is at 0 of 5 in "):
        asyncio.run(scene())
    for step in ("0", "1"):
        with Region.open(gating.path_of(tmp_path, step)) as region:
            assert not region.header().closed
    for worker in workers:
        worker.thread.join()


def test_ranks_that_went_on_before_the_freeze_are_noticed(tmp_path: Path, core: Core) -> None:
    path = gating.path_of(tmp_path, "0")
    Region.create(path, -1, -1).close()

    async def scene() -> None:
        async with quiesce.quiesce([pod(tmp_path, "0")], tmp_path, SETTINGS) as quiesced:
            with Region.open(path) as region:
                region.write(layout.CLOSED_AT, 0)
            quiesced.check()

    with pytest.raises(Skipped, match="went on before they were frozen"):
        asyncio.run(scene())


def standing() -> list[str]:
    """The threads that give signs of life of pods at their boundary."""
    return [thread.name for thread in threading.enumerate() if thread.name == "gate"]


@pytest.mark.parametrize("attempt", [1, 2])
def test_who_is_cancelled_leaves_no_gate_closed(
    tmp_path: Path, core: Core, monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    """Pod 1 stands at its boundary by then: nobody may go on to hold it there."""
    path = gating.path_of(tmp_path, "0")
    for step in ("0", "1"):
        Region.create(gating.path_of(tmp_path, step), -1, -1).close()
    workers = [Worker(core, path, 0, 5), Worker(core, path, 1, 0)]
    wait_until(lambda: counts(path) == [5, 0], "rank 0 is ahead")
    begun: list[float] = []

    async def patient(regions: Any, patience: float) -> Any:
        begun.append(patience)
        return await real(regions, 0.2 if len(begun) < attempt else PATIENCE)

    real = quiesce._attempt
    monkeypatch.setattr(quiesce, "_attempt", patient)

    async def scene() -> None:
        async with quiesce.quiesce([pod(tmp_path, "0"), pod(tmp_path, "1")], tmp_path, SETTINGS):
            pytest.fail("there is no boundary")

    async def cancelled() -> None:
        task = asyncio.create_task(scene())
        await until(lambda: len(begun) == attempt and standing())
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(cancelled())
    for step in ("0", "1"):
        with Region.open(gating.path_of(tmp_path, step)) as region:
            assert not region.header().closed
    assert standing() == []
    for worker in workers:
        worker.thread.join()


def test_whatever_happens_within_the_gate_opens(tmp_path: Path) -> None:
    path = gating.path_of(tmp_path, "0")
    Region.create(path, -1, -1).close()

    async def scene() -> None:
        async with quiesce.quiesce([pod(tmp_path, "0")], tmp_path, SETTINGS):
            with Region.open(path) as region:
                assert region.header().closed
            raise ValueError

    with pytest.raises(ValueError):
        asyncio.run(scene())
    with Region.open(path) as region:
        assert not region.header().closed


def test_a_gate_that_is_destroyed_meanwhile_skips_the_checkpoint(tmp_path: Path) -> None:
    path = gating.path_of(tmp_path, "0")
    Region.create(path, -1, -1).close()

    async def scene() -> None:
        async with quiesce.quiesce([pod(tmp_path, "0")], tmp_path, SETTINGS) as quiesced:
            os.truncate(path, 0)
            quiesced.check()

    with pytest.raises(Skipped, match="cut off"):
        asyncio.run(scene())
