"""What keeps a pod from being captured, as sentences for a user."""

from __future__ import annotations

from dataclasses import dataclass

from slurmckpt.capture.processes import Process


@dataclass(frozen=True)
class Reason:
    """Why a pod cannot be captured.

    what: follows the name of the process ("uses io_uring"). remedy: follows a colon. Both with one_line() around what
    a user has chosen.
    """

    process: Process
    what: str
    remedy: str


class Refusals:
    """Collects reasons; the same reason for many processes becomes one sentence that names the first of them."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], Process] = {}
        self._holders: dict[tuple[str, str], set[int]] = {}

    def add(self, reason: Reason) -> None:
        """Take one more."""
        key = (reason.what, reason.remedy)
        self._first.setdefault(key, reason.process)
        self._holders.setdefault(key, set()).add(reason.process.pid)

    def sentences(self, limit: int) -> list[str]:
        """One sentence a reason, in the order of their discovery; the last one counts what `limit` leaves out."""
        texts = [self._sentence(key) for key in self._first]
        if len(texts) > limit:
            left = len(texts) - limit
            texts = [*texts[:limit], f"{left} more {'reason' if left == 1 else 'reasons'} of this kind"]
        return texts

    def _sentence(self, key: tuple[str, str]) -> str:
        what, remedy = key
        others = len(self._holders[key]) - 1
        too = f" (and {others} more {'process' if others == 1 else 'processes'} too)" if others else ""
        return f"{self._first[key]} {what}{too}: {remedy}"
