"""Which step belongs to which srun of the script."""

from __future__ import annotations

from dataclasses import replace

from slurmckpt.coordinator.script.marks import Marks
from tests.unit.coordinator.parts import hello, launch


def test_which_step_is_whose() -> None:
    marks, one, two = Marks(), launch(7), launch(9)
    assert [marks.issue(one), marks.issue(two)] == [0, 1]
    first = replace(hello(step=5), launch=0)
    assert marks.bind(first) is one
    # Its other tasks, and its mark in a step that this step has started.
    assert marks.bind(replace(first, task=1, ntasks=2)) is one
    assert marks.bind(replace(hello(step=6), launch=0)) is None
    assert marks.bind(replace(hello(step=6), launch=1)) is two
    assert (one.slurm_step, two.slurm_step) == ("5", "6")


def test_steps_that_no_srun_of_the_script_has_brought() -> None:
    marks, over = Marks(), launch(1)
    mark = marks.issue(over)
    over.ended.set()
    assert marks.bind(hello()) is None
    assert marks.bind(replace(hello(), launch=7)) is None
    # An old mark in somebody's environment.
    assert marks.bind(replace(hello(), launch=mark)) is None
    assert over.slurm_step == ""


def test_the_same_srun_of_another_try_of_a_restore_is_another_one() -> None:
    marks, first, second = Marks(), launch(3), launch(3)
    old = marks.issue(first)
    first.killed = True
    first.ended.set()
    new = marks.issue(second)
    # A task of the first try that comes late: known as what it is, so that it does not begin.
    assert marks.bind(replace(hello(step=0), launch=old)) is first
    assert marks.bind(replace(hello(step=1), launch=new)) is second


def test_sruns_that_have_ended_are_forgotten() -> None:
    marks = Marks()
    for _ in range(1000):
        one = launch(0)
        mark = marks.issue(one)
        one.ended.set()
    assert (mark, len(marks._issued)) == (999, 1)
