"""A batch script comes back together with the steps that it waits for: all of them, or none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from slurmckpt.capture import crossings
from slurmckpt.config import Restore, Settings
from slurmckpt.coordinator import restoring
from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.coordinator.plan import Plan
from slurmckpt.coordinator.runner import StepRunner
from slurmckpt.coordinator.script import reception, restart, saved
from slurmckpt.coordinator.script.launch import Launch
from slurmckpt.coordinator.step import Step, StepNumbers
from slurmckpt.coordinator.wire import Channel
from slurmckpt.errors import Refused
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.manifest import LaunchImage
from tests.unit.coordinator.parts import GID, UID, channels, launch, task
from tests.unit.coordinator.running import FakePod, Stage, heard, play


class FakeScript:
    """A script whose sruns end when they are told to."""

    def __init__(self) -> None:
        self.numbered = 0
        self.binds: list[Any] = []
        self.launches: list[Launch] = []
        self.events: list[str] = []

    async def end(self) -> None:
        self.events.append("ended")
        for each in self.launches:
            each.killed = True
            each.ended.set()


class FakeDesk:
    def __init__(self, script: FakeScript, pod: object) -> None:
        self._script = script

    async def close(self) -> None:
        self._script.events.append("desk closed")


class Together(Stage):
    """events: which step stands and runs, in order. fails: raised in a step's restore before it stands.

    connected: the steps, or the script, that have connections into others.
    """

    def __init__(self, top: Path, files: UserFiles, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(top, files, monkeypatch)
        self.events: list[str] = []
        self.fails: dict[str, list[Exception]] = {}
        self.connected: set[str] = set()
        self.scripts: list[FakeScript] = []
        self.started = asyncio.Event()
        self.launches: dict[str, Launch] = {}
        self.shims: dict[str, Channel] = {}
        monkeypatch.setattr(reception, "prepare", self._prepare)
        monkeypatch.setattr(reception, "Desk", FakeDesk)
        monkeypatch.setattr(saved, "load_environment", lambda *_: {})
        monkeypatch.setattr(restart, "restart", self._restart)
        monkeypatch.setattr(crossings, "pairs", lambda images: {images.parent.name} & self.connected)
        monkeypatch.setattr(crossings, "listen", lambda init_pid, images: self.events.append("can hear"))
        self.monkeypatch = monkeypatch

    def _prepare(self, *_: object) -> FakeScript:
        self.scripts.append(FakeScript())
        return self.scripts[-1]

    async def _restart(self, script: FakeScript, image: Any, *_: object) -> list[Launch]:
        for each in image.launches:
            one = launch(each.number)
            one.step = each.step
            script.launches.append(one)
            self.launches[each.step] = one
        self.started.set()
        return script.launches

    async def _restore(  # type: ignore[override]
        self,
        restorer: object,
        plan: Plan,
        saved: object,
        step: Step,
        tasks: Any,
        pod: Any,
        holders: Any,
        stand: Any,
    ) -> list[str]:
        name = f"{step.name} of #{plan.manifest.seq}"
        assert plan.directory.exists()
        pod.init_pid = 4711
        if self.fails.get(step.name):
            raise self.fails[step.name].pop(0)
        if step.name in self.connected:
            self.events.append(f"{name} meets")
            await stand.meet(pod)
        self.events.append(f"{name} stands")
        if stand is not None:
            await stand.wait(pod)
        assert plan.directory.exists()
        self.events.append(f"{name} runs")
        for each in tasks:
            await each.channel.send("RUN")
            each.close()
        return []

    def plan(self, seq: int, steps: list[str]) -> Plan:
        made = super().plan(seq, steps)
        sruns = [
            LaunchImage(number, 120 + number, name, None, f"pipe:[{number}1]", f"pipe:[{number}2]", "x", None)
            for number, name in enumerate(steps)
            if name != "batch"
        ]
        images = [replace(one, launches=sruns if one.step == "batch" else []) for one in made.manifest.steps]
        return Plan(replace(made.manifest, steps=images, launches_started=9), made.directory, set(steps))

    async def begin(self, *plans: Plan, patience: float = 60) -> tuple[Incarnation, StepRunner]:
        incarnation = self.incarnation(list(plans))
        incarnation.settings = Settings(restore=Restore(attempts=3, patience=patience))
        await incarnation.advance()
        return incarnation, StepRunner(incarnation, self.steps, self.notices, StepNumbers())

    def start(self, runner: StepRunner, name: str, **changes: object) -> asyncio.Task[None]:
        """Let a step arrive. Its shim is in `shims`."""
        one, self.shims[name] = channels()
        step = Step(name, 1, 1, argv_digest="d" * 64, command="./train.py", launch=self.launches.get(name))
        for key, value in changes.items():
            setattr(step, key, value)
        self.steps[name] = step
        given = task(one, {1: os.open("/dev/null", os.O_WRONLY)})
        return asyncio.create_task(runner.run(step, [given]))

    async def told(self, name: str) -> list[str]:
        words = await heard(self.shims[name])
        self.shims[name].close()
        return words

    async def let_end(self, work: Sequence[asyncio.Task[None]]) -> None:
        for pod in FakePod.made:
            pod.ended.set()
        await asyncio.wait_for(asyncio.gather(*work), 60)


@pytest.fixture
def stage(tmp_path: Path, user_files: UserFiles, monkeypatch: pytest.MonkeyPatch) -> Together:
    return Together(tmp_path, user_files, monkeypatch)


def test_none_runs_before_all_stand(stage: Together) -> None:
    async def scene() -> None:
        plan = stage.plan(4, ["batch", "0", "1"])
        incarnation, runner = await stage.begin(plan)
        work = [stage.start(runner, "batch")]
        await stage.started.wait()
        work += [stage.start(runner, "1"), stage.start(runner, "0")]
        assert [await stage.told(name) for name in ("batch", "0", "1")] == [["RUN"]] * 3
        first, rest = stage.events[:3], stage.events[3:]
        assert sorted(first) == ["0 of #4 stands", "1 of #4 stands", "batch of #4 stands"]
        assert sorted(rest) == ["0 of #4 runs", "1 of #4 runs", "batch of #4 runs"]
        assert [stage.steps[name].restored_from for name in ("batch", "0", "1")] == [4, 4, 4]
        assert cast(FakeScript, incarnation.script).numbered == 9
        await stage.let_end(work)
        # All its pods are back: staging is free again.
        assert (plan.open_steps, plan.directory.exists()) == (set(), False)
        assert incarnation.script is None
        assert stage.scripts[0].events == ["desk closed", "ended"]

    play(scene)


@pytest.mark.parametrize("connected", [{"batch", "0"}, {"0", "1"}, {"batch", "0", "1"}])
def test_those_with_connections_into_each_other_meet_before_any_stands(stage: Together, connected: set[str]) -> None:
    """A script that is one of them starts its sruns, once, before it meets their steps."""

    async def scene() -> None:
        stage.connected = connected
        _, runner = await stage.begin(stage.plan(4, ["batch", "0", "1"]))
        work = [stage.start(runner, "batch")]
        await stage.started.wait()
        work += [stage.start(runner, "1"), stage.start(runner, "0")]
        assert [await stage.told(name) for name in ("batch", "0", "1")] == [["RUN"]] * 3
        assert len(stage.scripts[0].launches) == 2
        events = [event.replace(" of #4", "") for event in stage.events]
        heard = events.index("can hear")
        assert {event for event in events[:heard] if event.endswith("meets")} == {f"{one} meets" for one in connected}
        assert all(events.index(f"{one} stands") > heard for one in connected)
        assert sorted(events[-3:]) == ["0 runs", "1 runs", "batch runs"]
        await stage.let_end(work)

    play(scene)


def broken(stage: Together) -> Callable[[StepRunner], Awaitable[list[asyncio.Task[None]]]]:
    async def scene(runner: StepRunner) -> list[asyncio.Task[None]]:
        stage.fails["1"] = [Refused("/home/jane/log is shorter")]
        return [stage.start(runner, "0"), stage.start(runner, "1")]

    return scene


def srun_ends(stage: Together) -> Callable[[StepRunner], Awaitable[list[asyncio.Task[None]]]]:
    async def scene(runner: StepRunner) -> list[asyncio.Task[None]]:
        work = [stage.start(runner, "0")]
        stage.launches["1"].status = 256
        stage.launches["1"].ended.set()
        return work

    return scene


def other_command(stage: Together) -> Callable[[StepRunner], Awaitable[list[asyncio.Task[None]]]]:
    async def scene(runner: StepRunner) -> list[asyncio.Task[None]]:
        return [stage.start(runner, "0"), stage.start(runner, "1", argv_digest="e" * 64, command="./other")]

    return scene


def nothing(stage: Together) -> Callable[[StepRunner], Awaitable[list[asyncio.Task[None]]]]:
    async def scene(runner: StepRunner) -> list[asyncio.Task[None]]:
        return [stage.start(runner, "0")]

    return scene


@pytest.mark.parametrize("connected", [set[str](), {"batch", "0", "1"}], ids=["apart", "connected"])
@pytest.mark.parametrize(
    ("arrive", "reason"),
    [
        (broken, "step 1: /home/jane/log is shorter"),
        (srun_ends, "srun ended before step 1 had started again (wait status 256)"),
        (other_command, "step 1 is './other' now, and was './train.py'"),
        (nothing, "step 1 did not start again within 0 s (restore.patience)"),
    ],
    ids=["broken", "srun ends", "other command", "patience"],
)
def test_one_that_cannot_come_back_ends_the_others(
    stage: Together, arrive: Any, reason: str, connected: set[str]
) -> None:
    async def scene() -> None:
        stage.connected = connected
        plan = stage.plan(4, ["batch", "0", "1"])
        _, runner = await stage.begin(plan, patience=0.3 if arrive is nothing else 60)
        batch = stage.start(runner, "batch")
        await stage.started.wait()
        work = await arrive(stage)(runner)
        said, run = await stage.told("batch")
        assert said == f"SAY slurmckpt: cold start: no checkpoint fits: #4: {reason}"
        assert run == "RUN"
        for name in [name for name in stage.shims if name != "batch"]:
            # The restored ones are gone, and nothing of them runs on beside the script that has begun anew.
            assert await stage.told(name) == ["EXIT 9"]
        assert not any(event.endswith("runs") or event == "can hear" for event in stage.events)
        assert stage.scripts[0].events == ["desk closed", "ended"]
        assert len(stage.scripts) == 2
        assert not plan.directory.exists()
        await stage.let_end([batch, *work])

    play(scene)


def test_the_older_checkpoint_is_tried_with_steps_of_its_own(stage: Together) -> None:
    async def scene() -> None:
        plans = [stage.plan(4, ["batch", "0"]), stage.plan(3, ["batch", "0"])]
        _, runner = await stage.begin(*plans)
        stage.fails["0"] = [Refused("no")]
        work = [stage.start(runner, "batch")]
        await stage.started.wait()
        stage.started.clear()
        work.append(stage.start(runner, "0"))
        assert await stage.told("0") == ["EXIT 9"]
        await stage.started.wait()
        work.append(stage.start(runner, "0"))
        assert await stage.told("batch") == ["RUN"] and await stage.told("0") == ["RUN"]
        assert stage.events[-1].endswith("of #3 runs")
        assert stage.steps["batch"].restored_from == stage.steps["0"].restored_from == 3
        await stage.let_end(work)
        assert not plans[1].directory.exists()

    play(scene)


def test_a_step_that_is_left_over_from_a_failed_restore_does_not_start(stage: Together) -> None:
    """Its srun is dead; a step of what has started instead is on its way."""

    async def scene() -> None:
        _, runner = await stage.begin(stage.plan(4, ["batch", "0"]), patience=0.1)
        work = [stage.start(runner, "batch")]
        assert (await stage.told("batch"))[-1] == "RUN"
        work.append(stage.start(runner, "0"))
        assert stage.steps["0"].launch is not None and stage.steps["0"].launch.killed
        assert await stage.told("0") == ["EXIT 9"]
        await stage.let_end(work)
        assert len(FakePod.made) == 2

    play(scene)


def test_no_step_is_restored_beside_a_script_that_could_not_be_wrapped(
    stage: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        _, runner = await stage.begin(stage.plan(4, ["batch", "0"]))
        work = [stage.start(runner, "batch", nnodes=2)]
        assert (await stage.told("batch"))[-1] == "DIRECT"
        work.append(stage.start(runner, "0"))
        assert await stage.told("0") == ["RUN"]
        assert stage.events == []
        await stage.let_end(work)

    play(scene)


def test_a_script_whose_pod_cannot_be_built_has_no_desk(stage: Together) -> None:
    async def scene() -> None:
        FakePod.build_error = OSError(24, "Too many open files")
        incarnation, runner = await stage.begin()
        work = [stage.start(runner, "batch")]
        assert (await stage.told("batch"))[-1] == "DIRECT"
        assert stage.scripts[0].events == ["desk closed", "ended"]
        assert incarnation.script is None
        await stage.let_end(work)

    play(scene)


def test_a_step_that_runs_unwrapped_keeps_its_script_out(stage: Together) -> None:
    async def scene() -> None:
        _, runner = await stage.begin()
        stage.launches["0"] = launch(0)
        work = [stage.start(runner, "0", nnodes=2)]
        assert (await stage.told("0"))[-1] == "DIRECT"
        assert stage.launches["0"].outside == "step 0 runs without checkpoints: step 0 runs on 2 nodes"
        await stage.let_end(work)

    play(scene)


def test_a_fault_of_ours_leaves_no_step_waiting(stage: Together) -> None:
    async def scene() -> None:
        _, runner = await stage.begin(stage.plan(4, ["batch", "0", "1"]))
        real = stage._restore

        async def restore(*args: Any) -> list[str]:
            step = args[3]
            if step.name == "batch":
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(real(*args), 0.3)
                raise KeyError("a fault of ours")
            return await real(*args)

        stage.monkeypatch.setattr(restoring, "restore", restore)
        work = [stage.start(runner, "batch")]
        await stage.started.wait()
        work.append(stage.start(runner, "0"))
        assert (await stage.told("batch"))[-1] == "DIRECT"
        assert await stage.told("0") == ["EXIT 9"]
        await stage.let_end(work)

    play(scene)


def test_a_restore_of_a_script_that_is_cancelled(stage: Together) -> None:
    async def scene() -> None:
        _, runner = await stage.begin(stage.plan(4, ["batch", "0", "1"]))
        work = [stage.start(runner, "batch")]
        await stage.started.wait()
        work.append(stage.start(runner, "0"))
        while "0 of #4 stands" not in stage.events:
            await asyncio.sleep(0.01)
        for each in work:
            each.cancel()
        await asyncio.wait(work, timeout=60)
        assert all(each.cancelled() for each in work)
        assert [pod.events for pod in FakePod.made] == [["destroyed", "gone"]] * 2
        await runner.close_script()
        assert stage.scripts[0].events == ["desk closed", "ended"]

    # The tasks and their streams belong to the job, which is over.
    asyncio.run(scene())


def test_a_failed_restore_of_a_step_does_not_undo_what_the_script_undoes(stage: Together, home: Path) -> None:
    """Both write to one file. The step has seen it only as the script's restore had left it."""
    out = home / "out"
    out.write_text("so far\n")
    if os.geteuid() == 0:
        os.chown(out, UID, GID)

    async def scene() -> None:
        _, runner = await stage.begin(stage.plan(4, ["batch", "0", "1"]))
        real = stage._restore

        async def restore(*args: Any) -> list[str]:
            if args[3].name == "0":
                stage.events.append("0 begins")
                return await real(*args)
            out.write_text("of the boundary\n")
            standing = asyncio.create_task(real(*args))
            while "0 begins" not in stage.events:
                await asyncio.sleep(0.01)
            standing.cancel()
            raise Refused("no")

        stage.monkeypatch.setattr(restoring, "restore", restore)
        one, shim = channels()
        descriptor = os.open(out, os.O_WRONLY | os.O_APPEND)
        batch = stage.steps["batch"] = Step("batch", 1, 1, argv_digest="d" * 64)
        work = [asyncio.create_task(runner.run(batch, [task(one, {1: descriptor})]))]
        await stage.started.wait()
        work.append(stage.start(runner, "0"))
        assert await stage.told("0") == ["EXIT 9"]
        assert (await heard(shim))[-1] == "RUN"
        shim.close()
        await stage.let_end(work)

    play(scene)
    assert out.read_text() == "so far\n"
