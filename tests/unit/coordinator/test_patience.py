"""Shims and stand-ins that wait hear that they do not wait in vain."""

from __future__ import annotations

import asyncio

import pytest

from slurmckpt.coordinator import patience
from tests.unit.coordinator.parts import channels, no_descriptor_is_lost, task


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_REASSURE_SECONDS", 0.001)


def test_until_it_is_answered() -> None:
    async def scene() -> None:
        one, other = channels()
        waiting = task(one)
        reassuring = asyncio.create_task(patience.reassure(waiting.channel))
        for _ in range(3):
            message = await asyncio.wait_for(other.receive(), 60)
            assert message is not None and message.verb == "WAIT"
        await waiting.run_directly()
        await asyncio.wait_for(reassuring, 60)
        other.close()

    with no_descriptor_is_lost():
        asyncio.run(scene())


@pytest.mark.parametrize("gone", [False, True])
def test_while_something_lasts(gone: bool) -> None:
    async def scene() -> None:
        one, other = channels()
        async with patience.reassured(one):
            message = await asyncio.wait_for(other.receive(), 60)
            assert message is not None and message.verb == "WAIT"
            if gone:
                other.close()
            await asyncio.sleep(0.01)
        if not gone:
            await one.send("LAUNCHED")
            verbs = []
            while "LAUNCHED" not in verbs:
                message = await asyncio.wait_for(other.receive(), 60)
                assert message is not None
                verbs.append(message.verb)
            await asyncio.sleep(0.01)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(other.receive(), 0.05)
            other.close()
        one.close()

    with no_descriptor_is_lost():
        asyncio.run(scene())
