"""All pods of one checkpoint come back together, or none: none runs before the last one stands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from slurmckpt.coordinator.cut import CutAborted, Rendezvous
from slurmckpt.coordinator.plan import Plan
from slurmckpt.coordinator.pod import Pod
from slurmckpt.coordinator.reunion import Reunion
from slurmckpt.errors import Refused


class Returning:
    """The restore of a batch script with the steps that it waits for. steps: names of those steps.

    over: set when all of them run, or when it has failed; failure then says why.
    """

    def __init__(self, plan: Plan, steps: Iterable[str], patience: float, reunion: Reunion | None = None) -> None:
        """patience: seconds until the last one must stand. reunion: of those whose connections lead into each other."""
        self.plan = plan
        self.missing = set(steps)
        self.failure = ""
        self.over = asyncio.Event()
        self._patience = patience
        self._reunion = reunion or Reunion({})
        self._meeting = Rendezvous(len(self.missing) + 1, self._all_stand)

    async def stand(self) -> None:
        """One pod is restored and does not run yet; wait for the others. Raises Refused when it must not run."""
        try:
            await asyncio.wait_for(self._meeting.arrive(), self._patience)
        except CutAborted:
            raise Refused(self.failure) from None
        except asyncio.TimeoutError:
            if self.over.is_set() and not self.failure:
                return  # the last one came at the very last moment, and the others run
            raise self._lost_patience(self.missing) from None

    async def meet(self, pod: Pod) -> None:
        """The sockets of one pod exist and are silent; wait for those that they are connected with. As stand()."""
        try:
            await asyncio.wait_for(self._reunion.meet(pod), self._patience)
        except CutAborted:
            raise Refused(self.failure) from None
        except asyncio.TimeoutError:
            raise self._lost_patience(self._reunion.missing) from None

    def _lost_patience(self, missing: Iterable[str]) -> Refused:
        names = ", ".join(sorted(missing)) or "another"
        self.fail(f"step {names} did not start again within {self._patience:.0f} s (restore.patience)")
        return Refused(self.failure)

    def fail(self, reason: str) -> None:
        """One of them cannot come back, so none does. The first reason counts."""
        if not self.over.is_set():
            self.failure = reason
            self._meeting.abort()
            self._reunion.abort()
            self.over.set()

    async def _all_stand(self) -> None:
        self.over.set()
