"""Who takes part in a cut: the script with what it waits for, or its free steps without it, or nobody."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from slurmckpt.coordinator.choice import Choice, Skipped, Unsettled, choose, without_script
from slurmckpt.coordinator.pod import Pod, TaskState
from slurmckpt.coordinator.pod_init import PodSettings
from slurmckpt.coordinator.script.launch import Launch
from slurmckpt.coordinator.script.marks import Marks
from slurmckpt.coordinator.script.script import Script
from slurmckpt.coordinator.step import Step
from tests.unit.coordinator.parts import GID, UID, launch


def step(name: str, by: Launch | None = None, runs: bool = True) -> Step:
    pod = Pod(name, UID, GID, [], PodSettings(Path("/"), Path("/"), Path("/"), True))
    pod.tasks[0] = TaskState(0, {}, pid=101, status=None if runs else 0)
    if by is not None:
        by.step = name
    return Step(name, 1, 1, pod=pod, launch=by, argv_digest=name * 64)


def script(*launches: Launch) -> Script:
    return Script(
        cast(Any, None), Path("/"), Path("/"), Path("/"), {}, {}, Marks(), {one.number: one for one in launches}
    )


def ended(number: int) -> Launch:
    one = launch(number)
    one.ended.set()
    return one


def names(choice: Choice) -> list[str]:
    return [each.name for each in choice.steps]


def test_the_script_alone() -> None:
    here = script()
    choice = choose([step("batch")], here)
    assert (names(choice), choice.script, choice.launches, choice.without_script) == (["batch"], here, [], "")


def test_the_script_with_the_steps_it_waits_for() -> None:
    one, two, over = launch(0), launch(1, output=stat.S_IFIFO), ended(2)
    steps = [step("1", two), step("0", one), step("batch"), step("2", over, runs=False)]
    choice = choose(steps, script(one, two, over))
    # The batch step comes first, always.
    assert names(choice) == ["batch", "0", "1"]
    assert choice.launches == [one, two]


def test_steps_that_something_else_started_are_left_out() -> None:
    one = launch(0)
    assert names(choose([step("batch"), step("0", one), step("7")], script(one))) == ["batch", "0"]


def test_where_srun_has_no_stand_in() -> None:
    choice = choose([step("batch"), step("0")], None)
    assert (names(choice), choice.script, choice.launches) == (["batch"], None, [])


def test_an_srun_that_has_not_brought_its_step_is_started_again_at_a_restore() -> None:
    one = launch(0)
    choice = choose([step("batch")], script(one))
    assert (names(choice), choice.launches) == (["batch"], [one])


def test_a_step_whose_srun_is_gone_is_not_waited_for() -> None:
    over = ended(0)
    assert names(choose([step("batch"), step("0", over)], script(over))) == ["batch"]


@pytest.mark.parametrize("pod", [True, False])
def test_a_step_that_comes_or_goes_is_waited_for(pod: bool) -> None:
    one = launch(0)
    coming = step("0", one, runs=False)
    if not pod:
        coming.pod = None
    with pytest.raises(Unsettled, match=r"^step 0 is just starting or ending$"):
        choose([step("batch"), coming], script(one))


@pytest.mark.parametrize("source", [stat.S_IFREG, stat.S_IFIFO])
def test_an_srun_that_has_read_input_nobody_has_yet(source: int) -> None:
    with pytest.raises(Unsettled, match="an srun that reads its standard input has not started its step yet"):
        choose([step("batch")], script(launch(0, source=source)))


def test_nobody_runs() -> None:
    with pytest.raises(Skipped, match=r"^no task of this job runs in a pod$"):
        choose([step("batch", runs=False)], script())
    with pytest.raises(Skipped, match=r"by a batch script that runs here: start them in one \(sbatch\)$"):
        choose([step("batch", runs=False), step("0")], None)


def test_a_step_outside_of_any_pod_leaves_the_script_out() -> None:
    one, two = launch(0), launch(1)
    two.outside = "a step of it runs with --checkpoint-interval=off"
    choice = choose([step("batch"), step("0", one)], script(one, two))
    assert (names(choice), choice.script) == (["0"], None)
    assert choice.without_script == "a step of it runs with --checkpoint-interval=off"
    assert choice.launches == [one]
    # When that srun has ended, nothing is in the way any more.
    two.ended.set()
    assert names(choose([step("batch"), step("0", one)], script(one, two))) == ["batch", "0"]


def test_without_the_script_its_free_steps_remain() -> None:
    free, bound = step("0", launch(0)), step("1", launch(1, output=stat.S_IFIFO))
    choice = without_script([step("batch"), free, bound, step("9")], "io_uring")
    assert (choice.steps, choice.script, choice.without_script) == ([free], None, "io_uring")


@pytest.mark.parametrize(
    ("source", "output"), [(stat.S_IFREG, stat.S_IFREG), (stat.S_IFCHR, stat.S_IFIFO), (stat.S_IFCHR, stat.S_IFSOCK)]
)
def test_without_the_script_a_bound_step_cannot_be_captured(source: int, output: int) -> None:
    reason = "the batch script cannot be captured: io_uring, and the script handles output or input of step 0"
    with pytest.raises(Skipped, match=f"^{re.escape(reason)}$"):
        without_script([step("batch"), step("0", launch(0, source, output))], "io_uring")


def test_without_the_script_and_without_steps() -> None:
    with pytest.raises(Skipped, match=r"^the batch script cannot be captured: io_uring$"):
        without_script([step("batch"), step("0", launch(0), runs=False), step("1")], "io_uring")


def test_without_the_script_steps_that_could_be_mistaken() -> None:
    steps = [step("0", launch(0)), step("1", launch(1))]
    steps[1].argv_digest = steps[0].argv_digest
    with pytest.raises(Skipped, match="several of its steps run the same command at once"):
        without_script(steps, "io_uring")
