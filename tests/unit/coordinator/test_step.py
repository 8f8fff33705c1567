"""The tasks of a step as they arrive."""

from __future__ import annotations

import asyncio
import os
import subprocess
from dataclasses import replace

import pytest

from slurmckpt.coordinator import step as steps
from slurmckpt.coordinator.step import Step
from tests.unit.coordinator.parts import channels, hello, no_descriptor_is_lost, task


def gathered(arrivals: list[int], lost: list[int], ntasks: int) -> tuple[list[int], Step]:
    async def scene() -> tuple[list[int], Step]:
        step = Step.of(hello(step=3, ntasks=ntasks), "3")
        waiting = asyncio.create_task(step.gather())
        await asyncio.sleep(0)
        for index in lost:
            step.lose(index)
        for index in arrivals:
            one, other = channels()
            other.close()
            step.add(task(one, index=index, ntasks=ntasks, step=3))
        tasks = await asyncio.wait_for(waiting, 60)
        for each in tasks:
            each.close()
        return [each.hello.task for each in tasks], step

    return asyncio.run(scene())


def test_all_come() -> None:
    found, step = gathered([2, 0, 1], [], 3)
    assert found == [0, 1, 2]
    assert (step.name, step.ntasks, step.closed, step.running) == ("3", 3, True, False)
    assert (step.argv_digest, step.command, step.carrier) == ("d" * 64, "/bin/true", os.getppid())


def test_one_is_lost() -> None:
    assert gathered([2, 0], [1], 3)[0] == [0, 2]


def test_all_are_lost() -> None:
    found, step = gathered([], [0, 1], 2)
    assert (found, step.closed, step.carrier) == ([], True, 0)


def test_a_task_that_is_lost_after_it_was_ready_still_counts_once() -> None:
    async def scene() -> None:
        step = Step.of(hello(ntasks=2), "0")
        one, other = channels()
        given = task(one, ntasks=2)
        step.add(given)
        step.lose(0)
        step.lose(1)
        assert step.gone == {1}
        assert await step.gather() == [given]
        given.close()
        other.close()

    asyncio.run(scene())


def test_one_that_never_comes_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(steps, "GATHER_SECONDS", 0.05)
    assert gathered([1], [], 2)[0] == [1]
    assert "step 3: 1 of 2 tasks came within 0 s" in caplog.text


def test_the_commands_of_all_tasks_count() -> None:
    """`srun --multi-prog`: the first task's command alone does not tell two steps apart."""

    def digest(commands: list[str]) -> str:
        async def scene() -> str:
            step = Step.of(hello(ntasks=len(commands)), "0")
            for index, command in enumerate(commands):
                one, other = channels()
                other.close()
                step.add(replace(task(one, index=index, ntasks=len(commands)), argv_digest=command * 64))
            for each in await step.gather():
                each.close()
            return step.argv_digest

        return asyncio.run(scene())

    different = {digest(list(commands)) for commands in ("ab", "ac", "ba", "aab", "aba")}
    assert len(different) == 5
    assert digest(["a", "a"]) == "a" * 64


def test_a_step_has_left_when_its_slurmstepd_has_ended() -> None:
    carrier = subprocess.Popen(["/bin/sleep", "1000"])

    async def scene() -> None:
        step = Step("0", 1, 1, carrier=carrier.pid)
        waiting = asyncio.create_task(step.left())
        await asyncio.sleep(0)
        assert not waiting.done()
        carrier.kill()
        await asyncio.wait_for(waiting, 60)

    with no_descriptor_is_lost():
        asyncio.run(scene())
    carrier.wait()


def test_a_step_that_does_not_leave_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "GATHER_SECONDS", 0.05)
    with no_descriptor_is_lost():
        asyncio.run(asyncio.wait_for(Step("0", 1, 1, carrier=os.getpid()).left(), 60))


@pytest.mark.parametrize("carrier", [0, 0x7FFFFFFF])
def test_a_step_without_slurmstepd_has_left(carrier: int) -> None:
    asyncio.run(asyncio.wait_for(Step("0", 1, 1, carrier=carrier).left(), 60))


def test_steps_are_numbered_as_they_come() -> None:
    numbers = steps.StepNumbers(started=3)
    named = [numbers.name(hello(step=step)) for step in (7, 0xFFFFFFFB, 0)]
    assert (named, numbers.started) == (["3", "batch", "4"], 5)
