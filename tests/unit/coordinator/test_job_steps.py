"""Which srun of the script has brought a step, and how many steps a job remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from slurmckpt.coordinator.incarnation import Incarnation
from slurmckpt.coordinator.job import Job
from slurmckpt.coordinator.script.launch import Launch
from slurmckpt.coordinator.script.marks import Marks
from slurmckpt.coordinator.step import Step
from slurmckpt.coordinator.task import Hello
from tests.unit.coordinator.jobs import new_job
from tests.unit.coordinator.parts import hello, launch


def script_of(job: Job, *launches: Launch) -> None:
    """Give the job a batch script that runs with these sruns, whose marks are their numbers."""
    marks = Marks()
    for number in range(max((one.number for one in launches), default=-1) + 1):
        marks.issue(next((one for one in launches if one.number == number), launch(number)))
    job._incarnation = cast(Incarnation, SimpleNamespace(marks=marks))


def steps_of(top: Path, launches: Sequence[Launch], hellos: Sequence[Hello], marks: Sequence[Hello] = ()) -> list[Step]:
    """The steps that tasks belong to. marks: tasks that run outside, before."""

    async def scene() -> list[Step]:
        job = new_job(top)
        script_of(job, *launches)
        for each in marks:
            job.runs_outside(each)
        found = [job.step_of(each) for each in hellos]
        for work in job._working:
            work.cancel()
        await asyncio.gather(*job._working, return_exceptions=True)
        assert all(step is not None for step in found)
        return cast(list[Step], found)

    return asyncio.run(scene())


def test_a_step_belongs_to_the_srun_that_brought_it(tmp_path: Path) -> None:
    one, two = launch(1), launch(2)
    hellos = [
        hello(step=0xFFFFFFFB),
        replace(hello(step=4), launch=2),
        replace(hello(step=3, ntasks=2), launch=1),
        replace(hello(step=3, task=1, ntasks=2), launch=1),
        hello(step=5),
    ]
    batch, first, second, other, stranger = steps_of(tmp_path, [one, two], hellos)
    assert (batch.name, batch.launch) == ("batch", None)
    assert (first.name, first.launch) == ("0", two)
    assert (second.name, second.launch) == ("1", one)
    assert other is second
    assert (stranger.name, stranger.launch) == ("2", None)
    assert (one.step, two.step) == ("1", "0")


def test_a_restored_step_has_its_name_from_the_checkpoint(tmp_path: Path) -> None:
    one = launch(1)
    one.step = "17"
    back, new = steps_of(tmp_path, [one], [replace(hello(step=0), launch=1), hello(step=1)])
    assert (back.name, back.launch, new.name) == ("17", one, "0")


def test_a_step_that_a_step_has_started_is_not_the_scripts(tmp_path: Path) -> None:
    """It may show the mark of the srun that brought the step it runs in: that one has its step already."""
    one = launch(1)
    outer, inner = steps_of(tmp_path, [one], [replace(hello(step=0), launch=1), replace(hello(step=1), launch=1)])
    assert (outer.launch, inner.launch) == (one, None)
    assert (one.step, one.slurm_step, inner.name) == ("0", "0", "1")


def test_a_mark_that_nobody_gave(tmp_path: Path) -> None:
    over = launch(1)
    over.ended.set()
    for number in (1, 7):
        (found,) = steps_of(tmp_path, [over], [replace(hello(), launch=number)])
        assert (found.launch, found.name) == (None, "0")


def test_a_step_that_is_off_keeps_its_script_out(tmp_path: Path) -> None:
    one, two = launch(1), launch(2)
    off = replace(hello(step=3), launch=1, off=True)
    (other,) = steps_of(tmp_path, [one, two], [replace(hello(step=4), launch=2)], [off, replace(off, task=0)])
    assert one.outside == "a step of it runs with --checkpoint-interval=off"
    assert (two.outside, other.launch) == ("", two)
    # Without a script, or without a mark, there is nothing to keep out.
    job = new_job(tmp_path)
    job.runs_outside(off)
    script_of(job)
    job.runs_outside(off)
    job.runs_outside(replace(off, launch=None))


def test_old_steps_of_very_many_are_forgotten(tmp_path: Path) -> None:
    async def scene() -> None:
        job = new_job(tmp_path, declined="why")
        job._incarnation = cast(Incarnation, SimpleNamespace(marks=Marks(), superseded=""))
        kept = launch(0)
        marked = replace(hello(step=0), launch=job._incarnation.marks.issue(kept))
        for number in range(150):
            step = job.step_of(marked if number == 0 else hello(step=number))
            assert step is not None
            step.lose(0)
            await asyncio.gather(*job._working)
        assert list(job.steps) == ["0", *map(str, range(51, 150))]
        # One of its tasks that comes late is not the first of a new step.
        assert job.step_of(hello(step=7)) is None
        kept.ended.set()
        for number in (150, 151):
            step = job.step_of(hello(step=number))
            assert step is not None
            step.lose(0)
            await asyncio.gather(*job._working)
        assert len(job.steps) == 100

    asyncio.run(scene())
