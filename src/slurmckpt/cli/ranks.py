"""What a running job's gate tells of its ranks, as part of `slurmckpt status`."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from slurmckpt.cli.console import table

_SHOWN = 64


def show(console: Console, live: dict[str, Any]) -> None:
    """A line for each rank in each communicator of NCCL, and who is waited for. live: the coordinator's answer."""
    ranks = live.get("ranks") or []
    if not ranks:
        return
    lines = table("step", "communicator", "rank", "pid", "is", "enqueued", "last operation")
    # Those who are waited for are shown whatever the number; the order stays as it is otherwise.
    for rank in sorted(ranks, key=lambda one: not one["missing"])[:_SHOWN]:
        missing = f" ({rank['missing']} behind)" if rank["missing"] else ""
        last = f"{rank['last']} of {rank['elements']}" if rank["last"] else "-"
        lines.add_row(
            escape(str(rank["step"])),
            escape(str(rank["communicator"])),
            f"{rank['rank']} of {rank['ranks']}",
            str(rank["pid"]),
            escape(str(rank["state"])),
            f"{rank['operations']}{missing}",
            escape(last),
        )
    console.print(lines)
    if len(ranks) > _SHOWN:
        console.print(f"and {len(ranks) - _SHOWN} more (--json has them)")
    for line in live.get("waits_for") or []:
        console.print(f"waited for at this moment: {escape(str(line))}")
