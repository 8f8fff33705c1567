"""Lines for the job's own output: each is said once, to the first task that can print it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.task import Task
from slurmckpt.errors import one_line

PREFIX = "slurmckpt: "


class Notices:
    """Keeps what no task could print yet, and what was said before."""

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._said: set[str] = set()

    def forget(self, text: str) -> None:
        """It may be said once more."""
        self._said.discard(text)

    def later(self, text: str) -> None:
        """For the next task that starts."""
        if self.first(text):
            self._waiting.append(text)

    def first(self, text: str) -> bool:
        """Whether this has not been said before; it counts as said now."""
        new = text not in self._said
        self._said.add(text)
        return new

    async def to_starting(self, tasks: Sequence[Task]) -> None:
        """What has waited, to the first of these tasks."""
        lines, self._waiting = self._waiting, []
        for line in lines:
            await say(tasks, line)

    async def to_running(self, steps: Iterable[Step], text: str) -> None:
        """To the first step that runs; kept for the next task when none does."""
        if text in self._said:
            return
        for step in steps:
            if step.pod is not None and step.running:
                self._said.add(text)
                await step.pod.say(PREFIX + one_line(text))
                return
        self.later(text)


async def say(tasks: Sequence[Task], text: str) -> None:
    """One line on the stderr of the first of these tasks."""
    for task in tasks[:1]:
        with contextlib.suppress(ConnectionError):
            await task.say(PREFIX + one_line(text))
