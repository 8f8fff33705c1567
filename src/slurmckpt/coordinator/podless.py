"""Tasks that get no pod: each runs by itself, or ends without having run."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence

from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.task import Task


async def run_directly(step: Step, tasks: Sequence[Task]) -> None:
    """Fail open: every shim executes its task itself."""
    step.let_anchor_go()
    step.streams.close()
    for task in tasks:
        with contextlib.suppress(ConnectionError):
            await task.run_directly()


async def end_tasks(step: Step, tasks: Sequence[Task]) -> None:
    """Their shims end as if the tasks had been killed."""
    step.let_anchor_go()
    step.streams.close()
    for task in tasks:
        with contextlib.suppress(ConnectionError):
            await task.channel.send("EXIT", [("status", int(signal.SIGKILL))])
        task.close()
