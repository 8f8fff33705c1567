"""The CUDA agent over a simulated device, with real processes. Who may die in which state: test_deaths.py."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest

from slurmckpt.capture.cuda.client import CudaClient, Lost
from slurmckpt.capture.cuda.errors import Busy, Unavailable
from slurmckpt.capture.cuda.group import Stuck
from slurmckpt.errors import SlurmckptError
from tests.doubles import simulated
from tests.unit.capture.cuda.conftest import ROOT, Rank, StartRank

SECONDS = 60.0


@asynccontextmanager
async def client(hardware: simulated.Hardware) -> AsyncIterator[CudaClient]:
    one = CudaClient(hardware.environment | {"PYTHONPATH": str(ROOT / "src")})
    try:
        yield one
    finally:
        await one.close()


async def comes(condition: Callable[[], Awaitable[bool]], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "it did not come"
        await asyncio.sleep(0.05)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 240))


def pair(start_rank: StartRank) -> tuple[list[Rank], list[int]]:
    ranks = [start_rank(device) for device in range(2)]
    for rank in ranks:
        rank.do(f"alloc 100000 {rank.pid % 200}")
    return ranks, [rank.pid for rank in ranks]


def test_two_ranks_are_captured_together(hardware: simulated.Hardware, start_rank: StartRank) -> None:
    ranks, pids = pair(start_rank)
    before = [rank.do("sha") for rank in ranks]

    async def work() -> None:
        async with client(hardware) as cuda:
            assert await cuda.find([*pids, os.getpid()]) == pids
            assert await cuda.used(pids) == 200000
            await cuda.lock(pids, 2.0)
            await cuda.checkpoint(pids, SECONDS)
            assert [await cuda.state(pid) for pid in pids] == ["CHECKPOINTED", "CHECKPOINTED"]
            await cuda.resume(pids, SECONDS)
            assert [await cuda.state(pid) for pid in pids] == ["RUNNING", "RUNNING"]

    run(work())
    assert [rank.do("sha") for rank in ranks] == before


def test_a_half_done_collective_is_no_boundary(hardware: simulated.Hardware, start_rank: StartRank) -> None:
    ranks, pids = pair(start_rank)
    ranks[0].do("launch 1 2 0 1")

    async def work() -> None:
        async with client(hardware) as cuda:
            with pytest.raises(Busy, match="NO_BOUNDARY") as caught:
                await cuda.lock(pids, 0.5)
            assert caught.value.pids == [pids[0]]

    run(work())
    # Nobody was left locked: the peer comes, and both are done.
    ranks[1].do("launch 1 2 1 1")
    assert [rank.do("sync") for rank in ranks] == ["ok", "ok"]


def test_a_node_without_a_driver_is_told(hardware: simulated.Hardware) -> None:
    hardware.set(devices=0)

    async def work() -> None:
        async with client(hardware) as cuda:
            with pytest.raises(Unavailable, match="no GPU is there"):
                await cuda.devices()

    run(work())


CALLS = ("lock", "checkpoint", "restore", "unlock")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_agent_dies_in_each_call(hardware: simulated.Hardware, start_rank: StartRank, call: str, when: str) -> None:
    """Its caller hears of it, another agent brings all ranks back, and the next cycle goes through."""
    ranks, pids = pair(start_rank)
    before = [rank.do("sha") for rank in ranks]

    async def work() -> None:
        async with client(hardware) as cuda:
            await cuda.devices()
            hardware.set(**{f"{call}__{when}": "die-caller"})
            # One of those that replace it must live.
            asyncio.get_running_loop().call_later(0.5, lambda: hardware.set(**{f"{call}__{when}": None}))
            with pytest.raises(SlurmckptError):
                await cuda.lock(pids, 1.0)
                await cuda.checkpoint(pids, SECONDS)
                await cuda.resume(pids, SECONDS)
            hardware.set(**{f"{call}__{when}": None})

            async def all_run() -> bool:
                return [await cuda.state(pid) for pid in pids] == ["RUNNING", "RUNNING"]

            await cuda.resume(pids, SECONDS)
            await comes(all_run)
            await cuda.lock(pids, 5.0)
            await cuda.checkpoint(pids, SECONDS)
            await cuda.resume(pids, SECONDS)

    run(work())
    assert [rank.do("sha") for rank in ranks] == before


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_rank_dies_in_each_call(hardware: simulated.Hardware, start_rank: StartRank, call: str, when: str) -> None:
    """The other one runs on, whatever is reported."""
    ranks, pids = pair(start_rank)
    before = ranks[1].do("sha")

    async def work() -> None:
        async with client(hardware) as cuda:
            await cuda.devices()
            hardware.at_pid(call, when, "die-target", pids[0])
            try:
                await cuda.lock(pids, 5.0)
                await cuda.checkpoint(pids, SECONDS)
                await cuda.resume(pids, SECONDS)
            except Stuck as error:
                assert pids[1] not in error.pids
            except SlurmckptError:
                pass
            assert await cuda.state(pids[1]) == "RUNNING"

    run(work())
    assert ranks[1].do("sha") == before


def started_since(others: list[psutil.Process]) -> list[psutil.Process]:
    """Living children of this process: other tests may have left some that end late."""
    children = psutil.Process().children()
    return [one for one in children if one not in others and one.status() != psutil.STATUS_ZOMBIE]


def test_a_lock_that_succeeds_after_its_agent_has_died_is_undone(
    hardware: simulated.Hardware, start_rank: StartRank
) -> None:
    """Rank 0 cannot be locked before its peer comes; that one is locked, and comes as soon as it is released."""
    ranks, pids = pair(start_rank)
    others = psutil.Process().children()
    ranks[0].do("launch 1 2 0 1")

    async def work() -> None:
        async with client(hardware) as cuda:
            await cuda.devices()
            hardware.at_pid("lock", "after", "wait", pids[1])
            locking = asyncio.create_task(cuda.lock(pids, 6.0))

            async def is_locked() -> bool:
                return (hardware.directory / "lock.after").exists()

            await comes(is_locked)
            (keeper,) = started_since(others)
            keeper.children()[0].kill()
            ranks[1].tell("launch 1 2 1 1")
            with pytest.raises(Lost):
                await locking
            assert [await cuda.state(pid) for pid in pids] == ["RUNNING", "RUNNING"]

    run(work())
    assert ranks[1].answer() == "ok"
    assert [rank.do("sync") for rank in ranks] == ["ok", "ok"]


def test_a_keeper_that_has_died_is_replaced_before_the_next_capture(
    hardware: simulated.Hardware, start_rank: StartRank
) -> None:
    """Nobody hears of its death; but without one, nobody is left when coordinator and agent die at once."""
    _, pids = pair(start_rank)
    others = psutil.Process().children()

    async def work() -> None:
        async with client(hardware) as cuda:
            await cuda.devices()
            (keeper,) = started_since(others)
            keeper.kill()

            async def is_dead() -> bool:
                return keeper.status() == psutil.STATUS_ZOMBIE

            await comes(is_dead)
            await cuda.lock(pids, 5.0)
            (another,) = started_since(others)
            assert another != keeper and len(another.children()) == 1
            await cuda.resume(pids, SECONDS)

    run(work())


def test_a_driver_that_hangs_is_given_up(hardware: simulated.Hardware, start_rank: StartRank) -> None:
    ranks, pids = pair(start_rank)

    async def work() -> None:
        async with client(hardware) as cuda:
            await cuda.lock(pids, 5.0)
            hardware.set(checkpoint__before="hang")
            with pytest.raises(Lost, match="did not answer within 1 s"):
                await cuda.checkpoint(pids, 1.0)

    run(work())
    assert [len(rank.do("sha")) for rank in ranks] == [64, 64]
