"""Leases (F_SETLEASE): a file that nobody else may open before its holder has agreed cannot be saved."""

from __future__ import annotations

from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.judgements import shown
from slurmckpt.capture.refusals import Reason


def judge(seen: Inspection) -> Iterator[Reason]:
    """Those for writing: even a look at the content would end them. Those for reading CRIU brings back."""
    for one in seen.descriptors.files:
        if one.leased:
            yield Reason(
                one.holder.process,
                f"has a lease for writing on {shown(one.path)}, which saving the file would break",
                "give it back before a checkpoint (F_SETLEASE with F_UNLCK)",
            )
