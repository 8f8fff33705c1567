"""Watches on files (inotify, fanotify): CRIU sets them anew, and drops what has not been read."""

from __future__ import annotations

from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.judgements import shown
from slurmckpt.capture.refusals import Reason


def judge(seen: Inspection) -> Iterator[Reason]:
    """Watches that CRIU cannot set again."""
    for one in seen.watches:
        if one.lost:
            yield Reason(
                one.holder.process,
                f"watches files ({one.kind}) on a file system ({shown(one.lost[0])}) where they cannot be found again",
                "end the watch before a checkpoint, or let the program look by itself now and then (polling)",
            )


def unread(seen: Inspection) -> Iterator[Reason]:
    """Events that would be lost. They come at any moment, so this has to be asked once more while all stand still."""
    for one in seen.watches:
        if one.unread:
            yield Reason(
                one.holder.process,
                f"has not yet read what happened to files that it watches ({one.kind}), and a restore would lose it",
                "a later checkpoint will do, once it has read it",
            )
