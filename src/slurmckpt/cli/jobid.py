"""The job id that a user types."""

from __future__ import annotations

import click

_HIGHEST = 2**32 - 2


class JobIdType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """Slurm's raw job id, in decimal digits; `20_1` is not one, although Python would read it as 201."""

    name = "job id"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Fails with one line that says what is accepted."""
        if isinstance(value, int):
            return value
        text = str(value)
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _HIGHEST):
            self.fail(
                f"JOB must be a job id, not {text[:40]!r}; for a task of an array: squeue --Format=JobID,ArrayTaskID",
                param,
                ctx,
            )
        return int(text)


JOB_ID = JobIdType()
