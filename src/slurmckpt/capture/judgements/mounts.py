"""File systems that the job has mounted inside its pod: the pod of a restore does not have them."""

from __future__ import annotations

from collections.abc import Iterator

from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.judgements import shown
from slurmckpt.capture.processes import Process
from slurmckpt.capture.refusals import Reason


def judge(seen: Inspection) -> Iterator[Reason]:
    """Whatever of them is open, mapped, a working directory or a root."""
    inside = {number: seen.mounts[number] for number in seen.mounts_inside}
    for one in seen.descriptors.files:
        if one.mount in inside:
            yield _reason(one.holder.process, f"has {shown(one.path)} open", inside[one.mount].kind)
    if not inside:
        return
    kinds = {mount.device: mount.kind for mount in inside.values()}
    for mappings in seen.mappings:
        for mapping in mappings.named:
            if mapping.is_file and mapping.device in kinds:
                yield _reason(mappings.process, f"has {shown(mapping.path)} mapped", kinds[mapping.device])
    for place in seen.places:
        for path in place.paths:
            for mount in inside.values():
                if path == mount.point or path.startswith(mount.point + "/"):
                    yield _reason(place.process, f"works in {shown(path)}", mount.kind)


def _reason(process: Process, what: str, kind: str) -> Reason:
    return Reason(
        process,
        f"{what}, on a file system ({shown(kind)}) that was mounted inside the job and is not there at a restore",
        "unmount it before a checkpoint, or mount it outside the job",
    )
