"""Files and pipes that were opened outside the pod: they are given again at a restore, or they cannot be captured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slurmckpt.capture.inspect.descriptors import Holder
from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.judgements import devices, memory, shown
from slurmckpt.capture.refusals import Reason


@dataclass(frozen=True)
class FromOutside:
    """key: CRIU's, when it is declared external. thing: in words."""

    key: str
    holder: Holder
    thing: str


def from_outside(seen: Inspection) -> Iterator[FromOutside]:
    """The descriptors that come from outside, the same one as often as it is held."""
    masters = devices.masters_of(seen)
    for one in seen.descriptors.files:
        inside = one.mount in seen.mounts or one.is_anonymous_memory
        if memory.is_secret(one, seen) or memory.is_message_queue(one, seen):
            continue
        if not inside and devices.refused(one, masters, seen) is None:
            thing = shown(one.path) if one.path else "a file with a path of more than a page"
            yield FromOutside(one.key, one.holder, thing)
    if seen.complete:
        for pipe in seen.half_pipes:
            verb = "reads from" if pipe.reading else "writes to"
            yield FromOutside(pipe.key, pipe.holder, f"a pipe that it {verb}")


def judge(seen: Inspection) -> Iterator[Reason]:
    """Those that nobody can give back."""
    for one in from_outside(seen):
        if one.key not in seen.known:
            yield Reason(
                one.holder.process,
                f"holds {one.thing} (descriptor {one.holder.descriptor}), which was opened outside the pod and cannot"
                " be given back at a restore",
                "close it, or open it in the program itself",
            )
