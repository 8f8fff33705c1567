"""The marks by which steps are known to belong to an srun of the script: SLURM_CKPT_LAUNCH in its environment."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurmckpt.coordinator.script.launch import Launch
from slurmckpt.coordinator.task import Hello


@dataclass
class Marks:
    """All marks of one coordinator.

    The number of a launch says which srun of the script it is, and comes again with each try of a restore. A mark is
    given once: a task that an earlier try has brought, and that comes late, is not taken for one of this.
    """

    _issued: dict[int, Launch] = field(default_factory=dict)
    _next: int = 0

    def issue(self, launch: Launch) -> int:
        """A new one, for an srun that is about to be started."""
        # Those that we have killed stay: their steps may still come, and must not begin.
        self._issued = {mark: one for mark, one in self._issued.items() if one.killed or not one.ended.is_set()}
        mark, self._next = self._next, self._next + 1
        self._issued[mark] = launch
        return mark

    def bind(self, hello: Hello) -> Launch | None:
        """The launch that brought the step of this task; None when no srun of the script did.

        A step that starts srun itself hands our mark on in its environment: only the first step that shows it is ours.
        """
        launch = self._issued.get(hello.launch) if hello.launch is not None else None
        if launch is None or (launch.ended.is_set() and not launch.killed):
            return None
        if not launch.slurm_step:
            launch.slurm_step = hello.step_name
        return launch if launch.slurm_step == hello.step_name else None
