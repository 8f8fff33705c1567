"""The job that a user names: `12`, which may be an array, or `12_3`, one task of an array."""

from __future__ import annotations

import re
from dataclasses import dataclass

import click

_HIGHEST = 2**32 - 2
_FORM = re.compile(r"([1-9][0-9]{0,9})(?:_([0-9]{1,10}))?", re.ASCII)


@dataclass(frozen=True)
class JobName:
    """number: a job's id, or that of an array. task: its number in the array; None: not given."""

    number: int
    task: int | None = None

    def __str__(self) -> str:
        return str(self.number) if self.task is None else f"{self.number}_{self.task}"


class JobNameType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """What Slurm's own commands take for one job; `2_1` is a task and not 21, as which Python would read it."""

    name = "job"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> JobName:
        """The name. Fails with one line that says what is accepted."""
        if isinstance(value, JobName):
            return value
        text = str(value)
        match = _FORM.fullmatch(text)
        numbers = [int(part) for part in match.groups() if part] if match else []
        if not numbers or max(numbers) > _HIGHEST:
            self.fail(f"JOB must be a job id such as 12, or 12_3 for a task of an array, not {text[:40]!r}", param, ctx)
        return JobName(*numbers)


JOB = JobNameType()
