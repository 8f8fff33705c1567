"""A store that does not answer holds its thread, but nobody who waits for it."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from slurmckpt.errors import StoreError
from slurmckpt.store.identity import UserFiles, beat


def files_with(patience: float) -> UserFiles:
    return UserFiles.for_user(os.getuid(), os.getgid(), [], patience)


async def _both(files: UserFiles, gate: threading.Event) -> None:
    with pytest.raises(StoreError, match=r"not answered for .* \(store\.patience\)"):
        await files.run(gate.wait)
    never: list[int] = []
    # At once: it is known by now.
    with pytest.raises(StoreError, match="not answered"):
        await asyncio.wait_for(files.run(never.append, 1), 60)
    gate.set()
    while True:
        try:
            assert await files.run(lambda: 7) == 7
            break
        except StoreError:
            await asyncio.sleep(0)
    assert never == [], "what nobody waits for any more and had not begun is not done later"


def test_who_waits_is_let_go_and_the_thread_is_used_again_when_it_answers() -> None:
    gate = threading.Event()
    with files_with(0.2) as files:
        try:
            asyncio.run(_both(files, gate))
        finally:
            gate.set()


def test_what_takes_long_and_gets_on_is_not_given_up() -> None:
    pause = threading.Event()

    def copy() -> str:
        for _ in range(12):
            pause.wait(0.2)
            beat()
        return "done"

    with files_with(2) as files:
        assert asyncio.run(files.run(copy)) == "done"


def test_what_waits_for_its_turn_is_not_given_up() -> None:
    pause = threading.Event()

    async def several(files: UserFiles) -> list[bool]:
        return await asyncio.gather(*(files.run(pause.wait, 0.5) for _ in range(5)))

    with files_with(2) as files:
        assert asyncio.run(several(files)) == [False] * 5


def test_a_cancelled_wait_takes_back_what_has_not_begun() -> None:
    gate = threading.Event()
    done: list[int] = []

    async def cancelled(files: UserFiles) -> None:
        first = asyncio.create_task(files.run(gate.wait))
        second = asyncio.create_task(files.run(done.append, 1))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        gate.set()
        await first

    with files_with(60) as files:
        asyncio.run(cancelled(files))
    assert done == []
