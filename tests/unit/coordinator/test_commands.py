"""When the hook commands run, and what becomes of their failures. tests/cluster/test_hook_commands.py shows how."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest

from slurmckpt.config import Hooks
from slurmckpt.coordinator import commands
from slurmckpt.coordinator.choice import Ended, Skipped, Unsettled
from slurmckpt.coordinator.commands import Commands
from slurmckpt.coordinator.journal import Journal
from slurmckpt.coordinator.pod import Pod, TaskState
from slurmckpt.coordinator.pod_init import PodSettings
from slurmckpt.coordinator.spec import Options
from slurmckpt.coordinator.step import Step

# Stands in for enter: runs what follows the two dashes, with the environment that it was given.
ENTER = """#!/bin/sh
while [ "$1" != -- ]; do
    case $1 in --environment) environment=$2 ;; esac
    shift
done
shift
exec env -i $(tr '\\0' '\\n' </proc/self/fd/$environment | grep -a SLURM_CKPT) PATH=$PATH "$@"
"""


class FakeJournal:
    def __init__(self) -> None:
        self.events: list[str] = []

    async def event(self, text: str) -> None:
        self.events.append(text)


class Stage:
    """A step that runs, and its commands, which write into a log."""

    def __init__(self, top: Path, hooks: Hooks, options: Options) -> None:
        self.top = top
        self.enter = top / "enter"
        self.enter.write_text(ENTER)
        self.enter.chmod(0o755)
        self.journal = FakeJournal()
        self.said: list[str] = []
        self.step = Step("batch", 1, 1)
        self.step.pod = Pod("batch", 0, 0, [0], PodSettings(top, top, top, True), init_pid=os.getpid())
        self.step.pod.tasks[0] = TaskState(0, {}, pid=os.getpid())
        self.step.pod.say = self._say  # type: ignore[method-assign]
        self.commands = Commands(self.enter, hooks, options, cast(Journal, self.journal))

    async def _say(self, text: str) -> None:
        self.said.append(text)

    def around(self, capture: Any) -> Any:
        return asyncio.run(self.commands.around([self.step], 7, capture))

    @property
    def log(self) -> list[str]:
        path = self.top / "log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(autouse=True)
def this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "pid_on_node", lambda _, pid: pid)


def note(top: Path, text: str) -> str:
    return f"echo {text} >>{top}/log"


def test_the_site_comes_first_and_the_capture_between(tmp_path: Path) -> None:
    what = "$SLURM_CKPT_HOOK $SLURM_CKPT_SEQ $SLURM_CKPT_RESULT"
    stage = Stage(
        tmp_path,
        Hooks(pre_checkpoint=note(tmp_path, f"site {what}"), post_checkpoint=note(tmp_path, f"site {what}")),
        Options(pre=note(tmp_path, f"job {what}"), post=note(tmp_path, f"job {what}")),
    )

    async def capture() -> str:
        (tmp_path / "log").open("a").write("captured\n")
        return "the cut"

    assert stage.around(capture) == "the cut"
    assert stage.log == [
        "site pre-checkpoint 7",
        "job pre-checkpoint 7",
        "captured",
        "site post-checkpoint 7 captured",
        "job post-checkpoint 7 captured",
    ]
    assert stage.said == stage.journal.events == []


def test_one_that_fails_before_is_a_reason_and_the_rest_is_undone(tmp_path: Path) -> None:
    after = note(tmp_path, "$SLURM_CKPT_RESULT")
    stage = Stage(tmp_path, Hooks(pre_checkpoint="echo no; exit 3"), Options(pre=note(tmp_path, "not run"), post=after))
    with pytest.raises(Skipped, match=r"^the pre-checkpoint command 'echo no; exit 3' ended with status 3$"):
        stage.around(lambda: pytest.fail("nothing is captured"))
    assert stage.log == ["skipped"]
    assert stage.said == ["slurmckpt: pre-checkpoint: no"]


def test_after_a_capture_that_fails(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Hooks(), Options(post=note(tmp_path, "$SLURM_CKPT_RESULT")))

    async def capture() -> None:
        raise Skipped("the disk is full")

    with pytest.raises(Skipped, match="the disk is full"):
        stage.around(capture)
    assert stage.log == ["skipped"]


async def _nothing() -> None:
    pass


def test_a_failure_afterwards_is_told_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Hooks(post_checkpoint="kill -9 $$"), Options())
    for _ in range(2):
        stage.around(_nothing)
    told = "the post-checkpoint command 'kill -9 $$' was killed by signal 9 (Killed)"
    assert (stage.journal.events, stage.said) == ([told], [f"slurmckpt: {told}"])


def test_they_wait_for_a_task_that_is_just_being_started(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Hooks(), Options(pre=note(tmp_path, "before")))
    steps: list[Step] = []

    async def scene() -> None:
        assert stage.step.pod is not None
        stage.step.pod.tasks[0].pid = 0
        running = asyncio.create_task(stage.commands.around(steps, 7, _nothing))
        await asyncio.sleep(0.1)
        steps.append(stage.step)
        await asyncio.sleep(0.1)
        assert stage.log == []
        stage.step.pod.tasks[0].pid = os.getpid()
        await running

    asyncio.run(scene())
    assert stage.log == ["before"]


def test_they_wait_until_it_executes_its_program(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Hooks(), Options(pre=note(tmp_path, "before")))

    async def scene() -> None:
        assert stage.step.pod is not None
        stage.step.pod.leader_pid = os.getpid()
        running = asyncio.create_task(stage.commands.around([stage.step], 7, _nothing))
        await asyncio.sleep(0.2)
        assert stage.log == []
        stage.step.pod.leader_pid = 1
        await running

    asyncio.run(scene())
    assert stage.log == ["before"]


def test_where_no_task_begins_there_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_START_SECONDS", 0.1)
    stage = Stage(tmp_path, Hooks(), Options(pre=note(tmp_path, "before"), post=note(tmp_path, "after")))
    with pytest.raises(Ended, match=r"^no task of this job runs in a pod$"):
        asyncio.run(stage.commands.around([], 7, lambda: pytest.fail("nothing is captured")))
    assert stage.step.pod is not None
    stage.step.pod.tasks[0].pid = 0
    with pytest.raises(Unsettled, match=r"^a task is just starting$"):
        stage.around(lambda: pytest.fail("nothing is captured"))
    assert stage.log == []


def test_one_that_takes_too_long(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Hooks(pre_checkpoint="exec sleep 100", timeout=0.2), Options())
    with pytest.raises(Skipped, match=r"did not end within 0.20 s \(hooks.timeout\) and was killed"):
        stage.around(_nothing)


def test_much_output_is_cut_and_never_waits(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Hooks(), Options(pre="yes 0123456789 | head -c 3000000"))
    stage.around(_nothing)
    assert len(stage.said) == 101
    assert stage.said[0] == "slurmckpt: pre-checkpoint: 0123456789"
    assert stage.said[-1] == f"slurmckpt: pre-checkpoint: ({3000000 - 1100} bytes more)"


def test_without_commands_nothing_is_started(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Hooks(), Options())
    stage.enter.unlink()
    assert stage.around(_nothing) is None


def test_what_cannot_be_started_is_a_reason(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Hooks(pre_checkpoint="true"), Options())
    stage.enter.unlink()
    with pytest.raises(Skipped, match="the pre-checkpoint command 'true' could not be run: "):
        stage.around(_nothing)
