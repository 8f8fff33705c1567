"""All pods of a checkpoint run again, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from slurmckpt.coordinator.plan import Plan
from slurmckpt.coordinator.returning import Returning
from slurmckpt.errors import Refused

PLAN = cast(Plan, None)


async def outcomes(waiting: Sequence[asyncio.Task[None]]) -> list[str]:
    """What each hears: `runs`, or why it must not."""
    found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
    return ["runs" if result is None else str(result) for result in found]


def standing(returning: Returning, count: int) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(returning.stand()) for _ in range(count)]


async def soon() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_none_runs_before_the_last_stands() -> None:
    async def scene() -> None:
        returning = Returning(PLAN, ["0", "1"], 60)
        waiting = standing(returning, 2)
        await soon()
        assert not any(each.done() for each in waiting) and not returning.over.is_set()
        waiting += standing(returning, 1)
        assert await outcomes(waiting) == ["runs"] * 3
        assert returning.over.is_set() and returning.failure == ""
        # It is decided: what fails later is another matter.
        returning.fail("too late")
        assert returning.failure == ""

    asyncio.run(scene())


def test_a_script_without_running_steps_waits_for_nobody() -> None:
    async def scene() -> None:
        assert await outcomes(standing(Returning(PLAN, [], 60), 1)) == ["runs"]

    asyncio.run(scene())


def test_one_that_cannot_come_back_ends_all_with_the_first_reason() -> None:
    async def scene() -> None:
        returning = Returning(PLAN, ["0", "1"], 60)
        waiting = standing(returning, 1)
        await soon()
        returning.fail("step 1: no file")
        returning.fail("step 0: another reason")
        # And whoever comes later.
        waiting += standing(returning, 1)
        assert await outcomes(waiting) == ["step 1: no file"] * 2

    asyncio.run(scene())


def test_patience_names_those_who_are_missing() -> None:
    async def scene() -> None:
        returning = Returning(PLAN, ["1", "0", "2"], 0.05)
        waiting = standing(returning, 1)
        returning.missing.discard("1")
        waiting += standing(returning, 1)
        reason = "step 0, 2 did not start again within 0 s (restore.patience)"
        assert await outcomes(waiting) == [reason] * 2
        assert returning.failure == reason

    asyncio.run(scene())


def test_a_timeout_in_the_very_moment_in_which_all_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """wait_for() may report it although what it waited for has happened: the others run already."""

    async def too_late(arriving: Any, patience: float) -> None:
        await arriving
        raise asyncio.TimeoutError

    async def scene() -> None:
        returning = Returning(PLAN, ["0"], 60)
        other = standing(returning, 1)
        await soon()
        monkeypatch.setattr(asyncio, "wait_for", too_late)
        late = standing(returning, 1)
        await asyncio.wait([*other, *late], timeout=60)
        assert [each.exception() for each in [*other, *late]] == [None, None]

    asyncio.run(scene())


def test_one_that_is_cancelled_leaves_the_others_waiting() -> None:
    async def scene() -> None:
        returning = Returning(PLAN, ["0"], 60)
        first, second = standing(returning, 2)[:2]
        await soon()
        assert await outcomes([first, second]) == ["runs", "runs"]

        returning = Returning(PLAN, ["0", "1"], 60)
        first, second = standing(returning, 2)
        await soon()
        first.cancel()
        await soon()
        assert first.cancelled() and not second.done()
        returning.fail("the job ends")
        with pytest.raises(Refused, match="the job ends"):
            await second

    asyncio.run(scene())
