"""Who waits for which answer."""

from __future__ import annotations

import asyncio

import pytest

from slurmckpt.coordinator.answers import Answers


def test_they_come_in_order() -> None:
    async def scene() -> list[bool]:
        answers = Answers()
        with answers.expected("SYNCED") as first, answers.expected("KILLED"), answers.expected("SYNCED") as second:
            pass
        # The first has given up, and its answer is still to come.
        first.cancel()
        answers.take("SYNCED")
        seen = [second.done()]
        answers.take("SYNCED")
        return [*seen, second.done(), answers.are_expected("SYNCED"), answers.are_expected("KILLED")]

    assert asyncio.run(scene()) == [False, True, False, True]


def test_what_could_not_be_asked_for_is_not_expected() -> None:
    async def scene() -> bool:
        answers = Answers()
        with pytest.raises(ConnectionError), answers.expected("SYNCED"):
            raise ConnectionError
        return answers.are_expected("SYNCED")

    assert not asyncio.run(scene())


def test_none_comes_any_more() -> None:
    async def scene() -> None:
        answers = Answers()
        with answers.expected("SYNCED") as future, answers.expected("SYNCED") as given_up:
            given_up.cancel()
            answers.end(ConnectionError("it ended"))
        with pytest.raises(ConnectionError, match="it ended"):
            await future
        assert not answers.are_expected("SYNCED") and not answers.are_expected("STARTED")

    asyncio.run(scene())
