"""The mark of a script that ended by itself while its job was being preempted: when it is left, and what it does."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.config import Settings, Staging
from slurmckpt.coordinator.finished import ScriptEnd, end_at_once
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.coordinator.plan import Planner
from slurmckpt.coordinator.pod import TaskState
from slurmckpt.coordinator.spec import JobSpec, Options
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.streams import OutputHolder
from slurmckpt.errors import SlurmError
from slurmckpt.identity import JobIdentity
from slurmckpt.slurm.port import JobInfo
from slurmckpt.store import lease
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore
from tests.unit.coordinator.parts import GID, UID, channels, no_descriptor_is_lost, task

ROOT = os.geteuid() == 0
KEY = b"0123456789abcdef"
RUNNING = JobInfo(7, "7", frozenset({"RUNNING"}), UID, "", "", ("n1",), 1, "debug", 0, "", True)
REQUEUED = replace(RUNNING, state=frozenset({"PENDING", "COMPLETING"}))
PREEMPTED = 1_795_953_600.0
# In any order in which Slurm may be asked: while it still knows of the preemption, and afterwards.
GRACE = replace(RUNNING, preempt_time=PREEMPTED)


class Slurm:
    def __init__(self, job: JobInfo | None, **settings: str) -> None:
        self.now = job
        self.settings = settings

    async def job(self, job_id: int) -> JobInfo:
        if self.now is None:
            raise SlurmError("slurmctld does not answer")
        return self.now

    async def config(self) -> dict[str, str]:
        return self.settings


class Stage:
    """One incarnation of job 7 with a real store, and a job's output file."""

    def __init__(self, top: Path, files: UserFiles) -> None:
        self.top = top
        self.files = files
        identity = JobIdentity("c", "jane", UID if ROOT else os.getuid(), GID if ROOT else os.getgid(), 7)
        self.store = JobStore(top / "store", identity)
        (top / "store").mkdir()
        (top / "store").chmod(0o1777)
        (top / "staging").mkdir()
        self.lines: list[str] = []
        self.without_progress: int | None = None
        self.last_outcome: str | None = None
        self.output = top / "job.out"
        files.run_sync(self.output.write_text, "line 1\nline 2\n")
        asyncio.run(self.store.prepare(files))
        self.incarnation = Incarnation(
            spec=JobSpec(identity, "n1", 1, 0, Options()),
            settings=Settings(staging=Staging(path=top / "staging")),
            node=cast(Any, SimpleNamespace(key=KEY, feature="slurmckpt-0123456789ab")),
            files=files,
            store=self.store,
            epoch=asyncio.run(lease.take(self.store, files, "n1")),
            journal=cast(Any, self),
            planner=cast(Any, None),
            staging=top / "staging" / "7",
            shm=top / "shm",
        )

    async def event(self, text: str) -> None:
        self.lines.append(text)

    async def gone(self, why: str) -> None:
        self.lines.append(f"gone {why}")

    async def step(self, name: str, ntasks: int, state: str, status: int | None) -> None:
        self.lines.append(f"{name} {state} {status}")

    def ended(self, name: str = "batch", status: int | None = 0, signals: tuple[int, ...] = ()) -> Step:
        """A step whose pod has ended."""
        step = Step(name, 1, 1, argv_digest="d" * 64)
        step.pod = cast(Any, SimpleNamespace(tasks={0: TaskState(0, {}, 100, status)}, signalled=set(signals)))
        return step

    def open_output(self) -> OutputHolder:
        return OutputHolder("batch/0/1", self.files.run_sync(os.open, self.output, os.O_WRONLY | os.O_CLOEXEC))

    def live(
        self, slurm: Slurm, after: JobInfo | None, batch: Step, *others: Step, between: Any = lambda: None
    ) -> list[int]:
        """From the script's end to the end of the job. after: what Slurm says then. Gives the marks in the store."""

        async def scene() -> None:
            steps = {step.name: step for step in (batch, *others)}
            watch = ScriptEnd(self.incarnation, steps, cast(Any, slurm))
            batch.streams.files.append(self.open_output())
            watch.note(batch)
            batch.streams.close()
            await asyncio.sleep(0.01)
            between()
            await watch.settle(after)

        with no_descriptor_is_lost():
            asyncio.run(scene())
        assert list((self.top / "staging").iterdir()) == []
        return self.store.sequence_numbers()


@pytest.fixture
def stage(home: Path, user_files: UserFiles) -> Iterator[Stage]:
    home.chmod(0o755)
    yield Stage(home, user_files)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (GRACE, REQUEUED),  # seen at the script's end, forgotten by Slurm since
        (RUNNING, replace(REQUEUED, preempt_time=PREEMPTED)),
        (None, replace(REQUEUED, preempt_time=PREEMPTED)),
    ],
)
def test_a_script_that_ended_in_its_grace_time_leaves_a_mark(
    stage: Stage, before: JobInfo | None, after: JobInfo
) -> None:
    assert stage.live(Slurm(before), after, stage.ended(status=0)) == [1]
    assert stage.lines == ["#1: the script ended by itself with status 0 while the job was being preempted"]


def test_the_end_after_a_preemption_leaves_a_mark_where_slurm_takes_it_for_another_one(stage: Stage) -> None:
    """As Slurm 24.11 does. Where it does not, the job does not come back, and there is no mark."""
    stage.last_outcome = "preempted"
    assert stage.live(Slurm(RUNNING), replace(RUNNING, state=frozenset({"COMPLETED"})), stage.ended()) == []
    assert stage.live(Slurm(RUNNING), REQUEUED, stage.ended()) == [1]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (RUNNING, REQUEUED),  # `scontrol requeue` in its last moment, or RequeueExit
        (GRACE, replace(RUNNING, state=frozenset({"PREEMPTED"}))),  # PreemptMode=CANCEL, or --no-requeue
        (GRACE, replace(RUNNING, state=frozenset({"COMPLETED"}))),
        (GRACE, None),
        (None, REQUEUED),
    ],
)
def test_no_mark_when_nothing_but_a_preemption_must_explain_the_requeue(
    stage: Stage, before: JobInfo | None, after: JobInfo | None
) -> None:
    assert stage.live(Slurm(before), after, stage.ended()) == []


@pytest.mark.parametrize(
    "disturbed",
    [
        {"signals": (signal.SIGTERM,)},
        {"signals": (signal.SIGCONT, signal.SIGUSR1)},
        {"status": signal.SIGKILL},
        {"status": signal.SIGTERM},
    ],
)
@pytest.mark.parametrize("who", ["batch", "0"])
def test_no_mark_when_a_signal_may_have_ended_it(stage: Stage, disturbed: dict[str, Any], who: str) -> None:
    """Programs save their state when they get SIGTERM, and end well, in the hope of being run again."""
    batch, other = (stage.ended(), stage.ended("0", **disturbed))
    if who == "batch":
        batch = stage.ended(**disturbed)
    assert stage.live(Slurm(GRACE), REQUEUED, batch, *([other] if who == "0" else [])) == []


def test_no_mark_when_a_step_ran_unseen(stage: Stage) -> None:
    unwrapped = Step("0", 1, 1)
    assert stage.live(Slurm(GRACE), REQUEUED, stage.ended(), unwrapped) == []


def test_signals_that_end_nobody_do_not_count(stage: Stage) -> None:
    batch = stage.ended(signals=(signal.SIGCONT, signal.SIGWINCH))
    assert stage.live(Slurm(GRACE), REQUEUED, batch, stage.ended("0"), stage.ended("1", None)) == [1]


@pytest.mark.parametrize(
    ("status", "settings", "expedite", "marks"),
    [
        (3, {}, False, [1]),
        (3, {"RequeueExit": "1-2,4", "RequeueExitHold": ""}, False, [1]),
        (3, {"RequeueExit": "1-3"}, False, []),
        (3, {"RequeueExitHold": "2,3"}, False, []),
        (3, {"RequeueExit": "what is this"}, False, []),
        (3, {}, True, []),
        # The end that everybody wishes for is none to be repeated.
        (0, {"RequeueExit": "0-255"}, True, [1]),
    ],
)
def test_no_mark_when_the_site_or_the_user_wants_such_an_end_repeated(
    stage: Stage, status: int, settings: dict[str, str], expedite: bool, marks: list[int]
) -> None:
    slurm = Slurm(GRACE, **settings)
    assert stage.live(slurm, replace(REQUEUED, expedite=expedite), stage.ended(status=status << 8)) == marks


def test_no_mark_by_a_node_that_was_given_up(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(lease.take(stage.store, stage.files, "n2"))
    assert stage.live(Slurm(GRACE), REQUEUED, stage.ended()) == []
    assert "that the script had ended by itself with status 0 is not kept: job 7 has a newer incarnation" in caplog.text


def test_no_mark_when_the_output_was_truncated_already(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """The next incarnation has begun."""

    def truncate() -> None:
        stage.output.write_text("")

    assert stage.live(Slurm(GRACE), REQUEUED, stage.ended(), between=truncate) == []
    assert "is not kept: an output file became shorter than 14 bytes" in caplog.text


@pytest.mark.parametrize(
    ("status", "progress", "before", "stays"),
    [
        (99, False, RUNNING, False),
        (99, True, RUNNING, True),
        (0, False, RUNNING, True),
        (99, False, GRACE, True),
    ],
)
def test_a_restored_script_that_ends_in_failure_is_not_restored_for_ever(
    stage: Stage, status: int, progress: bool, before: JobInfo, stays: bool
) -> None:
    """RequeueExit: the script asks by its exit status to be run again, and means: from its top."""
    stage.files.run_sync(stage.store.checkpoint(4).mkdir)
    stage.without_progress = None if progress else 4
    # A mark would be a checkpoint, too: this one is about what was there.
    found = stage.live(Slurm(before, RequeueExit="99"), REQUEUED, stage.ended(status=status << 8))
    assert (4 in found) is stays
    assert stage.lines == (
        [] if stays else ["gone when the script, restored from #4, had ended by itself with status 99"]
    )


def use(stage: Stage) -> tuple[list[str], list[str]]:
    """The next incarnation: what the script's shim hears, and what the journal is told."""

    async def scene() -> list[str]:
        stage.lines.clear()
        directory = stage.top / "restoring"
        directory.mkdir()
        planner = Planner(stage.store, stage.files, KEY, directory, lambda manifest: "")
        plan = await planner.next()
        assert plan is not None and plan.manifest.script_status is not None
        begun = replace(stage.incarnation, plan=plan)
        one, shim = channels()
        step = stage.ended(status=None)
        step.streams.files.append(stage.open_output())
        await end_at_once(begun, plan, step, [task(one)])
        assert begun.plan is None and not plan.directory.exists()
        words = []
        while (message := await asyncio.wait_for(shim.receive(), 60)) is not None:
            words.append(" ".join([message.verb, *(value for _, value in message.pairs)]))
        shim.close()
        return words

    with no_descriptor_is_lost():
        return asyncio.run(scene()), stage.lines


def test_the_next_incarnation_ends_at_once_in_the_same_way(stage: Stage) -> None:
    stage.live(Slurm(GRACE), REQUEUED, stage.ended(status=3 << 8))
    stage.files.run_sync(stage.output.write_text, "")  # as Slurm does
    words, lines = use(stage)
    text = (
        "the script had ended by itself with status 3 when the job was preempted (#1): "
        "it is not run again, and the job ends now"
    )
    assert words == [f"SAY slurmckpt: {text}", "EXIT 768"]
    assert lines == [text, "batch ended 768"]
    assert stage.output.read_text() == "line 1\nline 2\n"
    # Whoever requeues it after that wants it to run.
    assert stage.store.sequence_numbers() == []


def test_a_mark_that_was_tampered_with_is_none(stage: Stage) -> None:
    stage.live(Slurm(GRACE), REQUEUED, stage.ended(status=3 << 8))
    manifest = stage.store.checkpoint(1) / "manifest.json"
    stage.files.run_sync(
        manifest.write_text, manifest.read_text().replace('"script_status": 768', '"script_status": 0')
    )

    async def scene() -> None:
        directory = stage.top / "restoring"
        directory.mkdir()
        planner = Planner(stage.store, stage.files, KEY, directory, lambda manifest: "")
        assert await planner.next() is None
        assert planner.refused == ["#1: manifest is not signed with this site's key"]

    asyncio.run(scene())
