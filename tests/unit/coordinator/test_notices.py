"""Lines for the job's own output: each once, and harmless for a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from slurmckpt.coordinator.notices import Notices, say
from slurmckpt.coordinator.pod import Pod, TaskState
from slurmckpt.coordinator.pod_init import PodSettings
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.task import Task
from slurmckpt.coordinator.wire import Channel
from tests.unit.coordinator.parts import channels, no_descriptor_is_lost, task


async def lines_of(channel: Channel) -> list[str]:
    lines: list[str] = []
    while True:
        try:
            message = await asyncio.wait_for(channel.receive(), 0.3)
        except asyncio.TimeoutError:
            return lines
        assert message is not None and message.verb == "SAY"
        lines.append(message.text("text"))


class SpeakingPod(Pod):
    """A pod with one running task that keeps what it is told to say."""

    def __init__(self) -> None:
        super().__init__("0", 1, 1, [], PodSettings(Path("/"), Path("/"), Path("/"), True))
        self.tasks[0] = TaskState(0, {}, pid=101)
        self.said: list[str] = []

    async def say(self, text: str) -> None:
        self.said.append(text)


Scene = Callable[[Notices, Callable[[], Task]], Awaitable[None]]


def heard(scene: Scene) -> list[str]:
    """Play a scene, in which every new task has one and the same connection; gives the lines that came through it."""

    async def play() -> list[str]:
        one, other = channels()
        tasks: list[Task] = []

        def new_task() -> Task:
            tasks.append(task(one))
            return tasks[-1]

        await scene(Notices(), new_task)
        lines = await lines_of(other)
        for each in tasks:
            each.close()
        one.close()
        other.close()
        return lines

    with no_descriptor_is_lost():
        return asyncio.run(play())


def test_what_waits_is_said_by_the_first_task_that_starts_once() -> None:
    async def scene(notices: Notices, new_task: Callable[[], Task]) -> None:
        notices.later("one")
        notices.later("two")
        notices.later("one")
        await notices.to_starting([new_task()])
        await notices.to_starting([new_task()])
        notices.later("one")
        await notices.to_starting([new_task()])

    assert heard(scene) == ["slurmckpt: one", "slurmckpt: two"]


def test_only_the_first_of_the_tasks_speaks() -> None:
    async def scene(notices: Notices, new_task: Callable[[], Task]) -> None:
        mine, theirs = channels()
        second = task(mine, index=1, ntasks=2)
        notices.later("one")
        await notices.to_starting([new_task(), second])
        second.close()
        assert await theirs.receive() is None
        theirs.close()

    assert heard(scene) == ["slurmckpt: one"]


def test_to_a_running_step_once() -> None:
    pod = SpeakingPod()
    step = Step("0", 1, 1, pod=pod)

    async def scene(notices: Notices, new_task: Callable[[], Task]) -> None:
        await notices.to_running([Step("1", 1, 1), step], "checkpoint skipped: why")
        await notices.to_running([step], "checkpoint skipped: why")

    assert heard(scene) == []
    assert pod.said == ["slurmckpt: checkpoint skipped: why"]


def test_without_a_running_step_the_next_task_says_it() -> None:
    async def scene(notices: Notices, new_task: Callable[[], Task]) -> None:
        await notices.to_running([Step("1", 1, 1)], "text")
        await notices.to_starting([new_task()])

    assert heard(scene) == ["slurmckpt: text"]


def test_a_task_whose_shim_is_gone_is_no_error() -> None:
    async def scene() -> None:
        one, other = channels()
        other.close()
        silent = task(one)
        await say([silent], "text")
        await say([], "text")
        silent.close()

    with no_descriptor_is_lost():
        asyncio.run(scene())


def test_what_users_chose_cannot_forge_lines() -> None:
    async def scene(notices: Notices, new_task: Callable[[], Task]) -> None:
        notices.later("file a\nslurmckpt: b\0\x1b[2J")
        await notices.to_starting([new_task()])

    assert heard(scene) == ["slurmckpt: file a\\nslurmckpt: b\\x00\\x1b[2J"]
