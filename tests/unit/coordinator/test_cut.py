"""The meetings of a cut: all go on, or all fail."""

from __future__ import annotations

import asyncio

import pytest

from slurmckpt.coordinator.cut import CutAborted, Rendezvous


class Boom(Exception):
    pass


def test_nobody_goes_on_before_the_last_has_come_and_the_action_is_done() -> None:
    async def scene() -> list[str]:
        events: list[str] = []

        async def action() -> None:
            events.append("action begins")
            await asyncio.sleep(0.01)
            events.append("action ends")

        meeting = Rendezvous(3, action)

        async def participant(name: str, ticks: int) -> None:
            for _ in range(ticks):
                await asyncio.sleep(0)
            events.append(f"{name} arrives")
            await meeting.arrive()
            events.append(f"{name} goes on")

        await asyncio.gather(participant("a", 0), participant("b", 2), participant("c", 5))
        return events

    events = asyncio.run(scene())
    assert events[:5] == ["a arrives", "b arrives", "c arrives", "action begins", "action ends"]
    assert sorted(events[5:]) == ["a goes on", "b goes on", "c goes on"]


def meet(count: int, arriving: int, action_fails: bool = False, abort: str = "") -> tuple[list[object], int]:
    """(outcome of each arrival, how often the action ran). abort: `before` or `after` the arrivals."""

    async def scene() -> tuple[list[object], int]:
        runs = 0

        async def action() -> None:
            nonlocal runs
            runs += 1
            if action_fails:
                raise Boom("action")

        meeting = Rendezvous(count, action)
        if abort == "before":
            meeting.abort()
        arrivals = [asyncio.create_task(meeting.arrive()) for _ in range(arriving)]
        await asyncio.sleep(0.01)
        if abort == "after":
            meeting.abort()
        return list(await asyncio.wait_for(asyncio.gather(*arrivals, return_exceptions=True), 60)), runs

    return asyncio.run(scene())


def test_one_that_failed_before_the_others_came() -> None:
    outcomes, runs = meet(3, arriving=2, abort="before")
    assert runs == 0
    assert [type(outcome) for outcome in outcomes] == [CutAborted, CutAborted]


def test_all_come_after_an_abort() -> None:
    """A participant whose dump failed may still be counted; the action must not run then."""
    outcomes, runs = meet(2, arriving=2, abort="before")
    assert runs == 0
    assert [type(outcome) for outcome in outcomes] == [CutAborted, CutAborted]


def test_one_that_fails_while_the_others_wait() -> None:
    outcomes, runs = meet(3, arriving=2, abort="after")
    assert runs == 0
    assert [type(outcome) for outcome in outcomes] == [CutAborted, CutAborted]


def test_the_actions_error_is_that_of_one_participant() -> None:
    outcomes, runs = meet(3, arriving=3, action_fails=True)
    assert runs == 1
    assert [type(outcome) for outcome in outcomes] == [CutAborted, CutAborted, Boom]


def test_an_abort_after_all_went_on_changes_nothing() -> None:
    outcomes, runs = meet(2, arriving=2, abort="after")
    assert (outcomes, runs) == ([None, None], 1)


def test_an_abort_that_nobody_waits_for_is_no_error_of_its_own() -> None:
    async def scene() -> list[object]:
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

        async def action() -> None:
            pass

        Rendezvous(2, action).abort()
        await asyncio.sleep(0)
        return complaints

    assert asyncio.run(scene()) == []


def test_a_participant_that_is_cancelled_does_not_take_the_others_along() -> None:
    async def scene() -> object:
        async def action() -> None:
            pass

        meeting = Rendezvous(3, action)
        first, second = (asyncio.create_task(meeting.arrive()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        assert not second.done()
        await meeting.arrive()
        await asyncio.wait_for(second, 60)
        with pytest.raises(asyncio.CancelledError):
            await first
        return "all others went on"

    assert asyncio.run(scene()) == "all others went on"
