"""What keeps a pod from being captured, as sentences for a user."""

from __future__ import annotations

from collections.abc import Iterable
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


def sentences(reasons: Iterable[Reason], limit: int) -> list[str]:
    """One sentence a reason, in the order of their discovery; the last one counts what `limit` leaves out.

    The same reason for many processes becomes one sentence that names the first of them.
    """
    holders: dict[tuple[str, str], list[Process]] = {}
    for reason in reasons:
        holders.setdefault((reason.what, reason.remedy), []).append(reason.process)
    texts = [_sentence(what, remedy, processes) for (what, remedy), processes in holders.items()]
    if len(texts) > limit:
        left = len(texts) - limit
        texts = [*texts[:limit], f"{left} more {'reason' if left == 1 else 'reasons'} of this kind"]
    return texts


def _sentence(what: str, remedy: str, processes: list[Process]) -> str:
    others = len({process.pid for process in processes}) - 1
    too = f" (and {others} more {'process' if others == 1 else 'processes'} too)" if others else ""
    return f"{processes[0]} {what}{too}: {remedy}"
