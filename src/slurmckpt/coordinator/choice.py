"""Who takes part in a group checkpoint.

The batch script and the steps that it waits for belong together: its shell is restored in the middle of its line only
with all of them. Where the shell cannot be captured, its running steps are, and the script runs again from its top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurmckpt.coordinator.script.launch import Launch
from slurmckpt.coordinator.script.script import Script
from slurmckpt.coordinator.step import Step
from slurmckpt.errors import SlurmckptError

# Reasons in one message.
_TOLD = 3


class Skipped(SlurmckptError):
    """This group checkpoint is not taken: the message says why. The ranks run on, the previous checkpoint stays."""


class Unsettled(Skipped):
    """Not at this moment, but soon."""


class Doubtful(Skipped):
    """Refused, if it stays so: it may be a moment's (`doubts`). reasons: each of them a sentence.

    is_moment: it is one, but jobs may have one after the other.
    """

    def __init__(self, *reasons: str, is_moment: bool = False) -> None:
        super().__init__("; ".join(reasons[:_TOLD]))
        self.reasons = reasons
        self.is_moment = is_moment


class Ended(Unsettled):
    """Nothing runs that could be captured. Nothing is wrong with it."""


class Suspended(Skipped):
    """Slurm has stopped the job, or is about to. Nothing is wrong with it."""


@dataclass(frozen=True)
class Choice:
    """steps: who takes part. script: when the batch script does, with its sruns.

    without_script: why it does not although it runs; empty when it does, or when there is none.
    """

    steps: list[Step]
    script: Script | None = None
    without_script: str = ""

    @property
    def launches(self) -> list[Launch]:
        """The running sruns that belong to it."""
        if self.script is not None:
            return self.script.running()
        return [step.launch for step in self.steps if step.launch is not None and not step.launch.ended.is_set()]


def choose(steps: Sequence[Step], script: Script | None) -> Choice:
    """The running steps that take part. Those that something else than the script has started do not.

    script: of the running batch task; None where srun has no stand-in. Raises Skipped when nobody is left.
    """
    batch = next((step for step in steps if step.name == "batch" and step.running), None)
    others = [step for step in steps if step.name != "batch" and step.running]
    if batch is None:
        if others:
            raise Doubtful(
                "the steps of this job were not started by a batch script that runs here: start them in one (sbatch)"
            )
        raise Ended("no task of this job runs in a pod")
    if script is None:
        return Choice([batch])
    by_launch = {id(step.launch): step for step in steps if step.launch is not None}
    taking_part = [batch]
    for launch in script.running():
        step = by_launch.get(id(launch))
        if launch.outside:
            return without_script(steps, launch.outside)
        if step is not None and step.running:
            taking_part.append(step)
        elif step is not None:
            raise Unsettled(f"step {step.name} is just starting or ending")
        elif launch.is_fed:
            raise Unsettled("an srun that reads its standard input has not started its step yet")
    return Choice(taking_part, script)


def without_script(steps: Sequence[Step], reason: str) -> Choice:
    """The running steps of a script that cannot be captured, for this reason.

    A step whose output or input the script handles could not be restored beside a script that runs again, so it is not
    frozen for it. Raises Skipped when none is left.
    """
    started = [step for step in steps if step.running and step.launch is not None]
    free = [step for step in started if step.launch is not None and not step.launch.is_connected]
    if len({step.argv_digest for step in free}) < len(free):
        raise Doubtful(
            f"the batch script cannot be captured ({reason}), and several of its steps run the same command at once"
            " and could be taken for each other at a restore: give them different arguments"
        )
    if not free:
        bound = f", and the script handles output or input of step {started[0].name}" if started else ""
        raise Skipped(f"the batch script cannot be captured: {reason}{bound}")
    return Choice(free, None, reason)
