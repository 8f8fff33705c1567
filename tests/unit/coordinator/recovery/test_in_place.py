"""When all ranks can go back in place; that nothing is changed when not, and nothing left waiting when it fails."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurmckpt.capture import multicast, pids, recreate, undo
from slurmckpt.coordinator import restoring
from slurmckpt.coordinator.cut import Rendezvous
from slurmckpt.coordinator.plan import Plan
from slurmckpt.coordinator.recovery.in_place import InPlace, Lost, Unfit, _Part
from slurmckpt.coordinator.reunion import Reunion
from slurmckpt.coordinator.script.launch import Launch
from slurmckpt.coordinator.step import Step
from slurmckpt.errors import Refused, StoreError
from slurmckpt.store.manifest import Manifest
from tests.unit.awaiting import until
from tests.unit.coordinator.parts import channels, image, saved_task, task
from tests.unit.coordinator.recovery.stage import SpokenPod, Stage
from tests.unit.coordinator.script.world import payload


class FakePlanner:
    """found: what it finds, one after the other."""

    def __init__(self, stage: Scenery) -> None:
        self.stage = stage
        self.found: list[Manifest | Exception] = []
        self.refused: list[str] = []
        self.fetched: asyncio.Event | None = None

    def again(self, staging: Path) -> FakePlanner:
        return self

    async def next(self) -> Plan | None:
        if self.fetched is not None:
            await self.fetched.wait()
        if not self.found:
            return None
        manifest = self.found.pop(0)
        if isinstance(manifest, Exception):
            raise manifest
        return Plan(manifest, self.stage.top / str(manifest.seq))

    def cold_start_reason(self) -> str:
        return "no checkpoint fits: #1: a file differs"


class Scenery(Stage):
    """A step of two tasks and a checkpoint #1 of it."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(top, tasks=2)
        self.top = top
        self.planner = FakePlanner(self)
        self.incarnation.planner = self.planner
        self.in_place = InPlace(self.scene)
        self.restored: list[int] = []
        self.errors: list[Exception] = []
        images = [image([saved_task(0), saved_task(1)], ntasks=2)]
        self.manifests = {seq: replace(self.checkpointer.manifest(seq), steps=images) for seq in (1, 2, 3)}
        self.checkpointer.newest = self.manifests[1]
        self.planner.found = [self.manifests[1]]
        monkeypatch.setattr(self.in_place, "_restore", self._restore)

    async def _restore(self, plan: Plan, parts: Any, sruns: Any) -> None:
        self.restored.append(plan.manifest.seq)
        if self.errors:
            raise self.errors.pop(0)

    def add(self, name: str, started_by_script: bool = True) -> SpokenPod:
        pod = SpokenPod(name)
        launch = Launch(0, payload([]), {}, "", "") if started_by_script and name != "batch" else None
        self.steps[name] = Step(name, 1, 1, pod=pod, argv_digest="d" * 64, launch=launch)
        return pod

    def recover(self, before: Callable[[], None] = lambda: None, until: float | None = None) -> Manifest:
        async def scene() -> Manifest:
            for index in (0, 1):
                one, other = channels()
                other.close()
                self.step.tasks[index] = task(one, index=index, ntasks=2)
            try:
                self.in_place.remember(self.step)
                before()
                return await self.in_place.recover(until)
            finally:
                assert not self.checkpointer.one_at_a_time.locked()
                for each in self.step.tasks.values():
                    each.close()

        return asyncio.run(scene())

    def unfit(self, before: Callable[[], None] = lambda: None) -> str:
        """Why nothing was done; and nothing was."""
        with pytest.raises(Unfit) as raised:
            self.recover(before)
        assert self.pod.told == []
        assert self.restored == []
        return str(raised.value)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scenery:
    return Scenery(tmp_path, monkeypatch)


def test_all_ranks_go_back(stage: Scenery) -> None:
    assert stage.recover().seq == 1
    assert (stage.pod.told, stage.restored) == (["kill"], [1])
    assert stage.checkpointer.newest == stage.manifests[1]


def test_the_older_one_when_the_newest_fails(stage: Scenery) -> None:
    stage.planner.found = [stage.manifests[3], stage.manifests[2]]
    stage.errors = [Refused("/home/jane/log is shorter")]
    assert stage.recover().seq == 2
    assert (stage.pod.told, stage.restored) == (["kill", "kill"], [3, 2])
    assert stage.checkpointer.newest == stage.manifests[2]


def test_what_is_not_captured_goes_on(stage: Scenery) -> None:
    """A script that no image can hold, and a step that somebody else has started."""
    others = [stage.add("batch"), stage.add("1", started_by_script=False)]
    stage.recover()
    assert stage.pod.told == ["kill"]
    assert [pod.told for pod in others] == [[], []]


def test_nothing_to_go_back_to(stage: Scenery) -> None:
    stage.checkpointer.newest = None
    assert stage.unfit() == "no checkpoint had been taken"


def test_no_checkpoint_that_fits(stage: Scenery) -> None:
    stage.planner.found = []
    assert stage.unfit() == "no checkpoint fits: #1: a file differs"


def test_a_store_that_does_not_answer(stage: Scenery) -> None:
    stage.planner.found = [StoreError("the store cannot be read: Input/output error")]
    assert stage.unfit() == "the store cannot be read: Input/output error"


def test_a_task_that_has_ended_well_since(stage: Scenery) -> None:
    stage.pod.tasks[1].status = 0
    assert stage.unfit() == "task 1 of step 0 has ended since #1"


def test_a_task_that_had_ended_before(stage: Scenery) -> None:
    images = [image([saved_task(0), replace(saved_task(1), exited=True)], ntasks=2)]
    manifest = replace(stage.manifests[1], steps=images)
    stage.checkpointer.newest, stage.planner.found = manifest, [manifest]
    stage.pod.tasks[1].status = 0
    assert stage.recover().seq == 1


def test_a_step_that_has_ended_since(stage: Scenery) -> None:
    stage.pod.tasks[0].status = stage.pod.tasks[1].status = 0
    assert stage.unfit() == "step 0, which #1 holds, runs no more"


def test_another_step_runs_by_now(stage: Scenery) -> None:
    stage.add("1")
    assert stage.unfit() == "step 1 is not part of #1"


def test_a_step_that_has_begun_since(stage: Scenery) -> None:
    stage.add("batch")
    manifest = replace(stage.manifests[1], steps=[image([saved_task()], step="batch")])
    stage.checkpointer.newest, stage.planner.found = manifest, [manifest]
    stage.step.launch = Launch(0, payload([]), {}, "", "")
    assert stage.unfit() == "step 0 is not part of #1"


def test_another_command(stage: Scenery) -> None:
    stage.step.argv_digest = "e" * 64
    assert stage.unfit() == "step 0 is '' now, and was './train.py'"


def test_a_restore_that_is_not_complete(stage: Scenery) -> None:
    stage.incarnation.plan = Plan(stage.manifests[1], stage.top, {"1"})
    assert stage.unfit() == "step 1 has not come back from #1 yet"


def test_a_job_that_is_ended_meanwhile(stage: Scenery) -> None:
    stage.slurm.change(state=frozenset({"CANCELLED", "COMPLETING"}))
    assert stage.unfit() == "the job is CANCELLED+COMPLETING"


def test_a_step_that_is_cancelled_meanwhile(stage: Scenery) -> None:
    def shims_die() -> None:
        stage.step.tasks[1].shim_pid = 2**22 + 1

    assert stage.unfit(shims_die) == "step 0 is being ended by Slurm"


def test_a_shims_pid_that_is_another_process_by_now(stage: Scenery) -> None:
    def pids_are_used_again() -> None:
        stage.in_place._shims[os.getpid()] = 1

    assert stage.unfit(pids_are_used_again) == "step 0 is being ended by Slurm"


def test_shims_of_steps_that_are_forgotten_are_forgotten(stage: Scenery) -> None:
    def another_was_there() -> None:
        stage.in_place._shims[2**22 + 2] = 1
        stage.in_place.remember(stage.step)
        assert set(stage.in_place._shims) == {os.getpid()}

    stage.recover(another_was_there)


def test_ranks_die_in_time_while_a_large_checkpoint_is_still_fetched(stage: Scenery) -> None:
    """Pod init holds their ends for a while only."""
    stage.planner.fetched = asyncio.Event()
    kill = stage.pod.kill_tasks

    async def kill_tasks() -> None:
        await kill()
        assert stage.planner.fetched is not None
        stage.planner.fetched.set()

    stage.pod.kill_tasks = kill_tasks  # type: ignore[method-assign]
    assert stage.recover(until=time.monotonic() + 0.05).seq == 1


def test_and_while_another_checkpoint_is_still_committed(stage: Scenery) -> None:
    """The ranks go back when that is over."""

    def busy() -> None:
        async def commit() -> None:
            async with stage.checkpointer.one_at_a_time:
                await until(lambda: stage.pod.told == ["kill"])
                assert stage.restored == []

        tasks.append(asyncio.ensure_future(commit()))

    tasks: list[Any] = []
    assert stage.recover(busy, time.monotonic() + 0.05).seq == 1
    assert tasks[0].exception() is None


def test_ranks_that_cannot_be_brought_back(stage: Scenery) -> None:
    stage.planner.found = [stage.manifests[2], stage.manifests[1]]
    stage.errors = [Refused("one"), OSError(5, "Input/output error")]
    with pytest.raises(Lost):
        stage.recover()
    told = "the ranks were killed to be restored in place, and could not be: #2: one; #1: [Errno 5] Input/output error"
    assert stage.said == [told]
    assert stage.noted == [told]
    assert stage.pod.told[-1] == "destroy"


def test_restores_are_tried_a_bounded_number_of_times(stage: Scenery) -> None:
    stage.planner.found = [stage.manifests[seq] for seq in (3, 2, 1, 3, 2, 1)]
    stage.errors = [Refused("no")] * 6
    with pytest.raises(Lost):
        stage.recover()
    assert stage.restored == [3, 2, 1]


def test_a_fault_of_ours_leaves_nothing_waiting(stage: Scenery) -> None:
    stage.errors = [cast(Exception, KeyError("a fault of ours"))]
    with pytest.raises(KeyError):
        stage.recover()
    assert stage.pod.told == ["kill", "destroy"]


async def nothing() -> None:
    pass


def restored_by(stage: Scenery, monkeypatch: pytest.MonkeyPatch, check: Callable[..., Awaitable[None]]) -> None:
    """Restore the pod by a CRIU that has made the processes, and lets them run whatever it is told."""

    async def restore(installation: Any, target: Any, images: Path, hooks: Any, cpus: Any) -> None:
        try:
            await hooks.restored()
        finally:
            stage.pod.told.append("run")

    async def adopt(leader: int, pids: Any) -> None:
        stage.pod.told.append("adopt")

    monkeypatch.setattr(recreate, "restore", restore)
    monkeypatch.setattr(restoring, "check_rights", check)
    monkeypatch.setattr(multicast, "apply", lambda init_pid, images: stage.pod.told.append("groups"))
    monkeypatch.setattr(stage.pod, "adopt_again", adopt)
    stage.incarnation.enter, stage.incarnation.files = Path("/enter"), None
    stage.incarnation.node = SimpleNamespace(installation=None)
    manifest = stage.manifests[1]
    part = _Part(stage.step, stage.pod, manifest.steps[0])
    images = stage.top / "1" / part.image.directory / "images"
    images.mkdir(parents=True)
    pids.save(4711, images)

    async def scene() -> None:
        together = Rendezvous(1, nothing)
        alone = Reunion({})
        await stage.in_place._restore_one(Plan(manifest, stage.top / "1"), part, {}, together, alone, None)

    asyncio.run(scene())


def test_what_criu_leaves_out_is_done_before_the_ranks_run(stage: Scenery, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(*_: Any) -> None:
        stage.pod.told.append("check")

    restored_by(stage, monkeypatch, check)
    assert stage.pod.told == ["check", "groups", "pids after 4711", "adopt", "run"]


def test_ranks_that_must_not_run_are_dead_before_criu_lets_them(
    stage: Scenery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has a file which its user may not open, for one."""

    async def check(*_: Any) -> None:
        raise Refused("its user may not open /root/secret")

    with pytest.raises(Refused, match="secret"):
        restored_by(stage, monkeypatch, check)
    assert stage.pod.told == ["kill", "run"]


def test_ranks_whose_semaphores_are_others_do_not_run(stage: Scenery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "has_failed", lambda images: True)
    with pytest.raises(Refused, match="SEM_UNDO"):
        restored_by(stage, monkeypatch, lambda *_: nothing())
    assert stage.pod.told == ["kill", "run"]
