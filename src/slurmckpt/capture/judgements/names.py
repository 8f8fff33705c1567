"""Names of files that CRIU cannot deal with: gone while the file has another, there again, or too long.

Of a file without any name CRIU keeps the content. For one that has a name somewhere it makes a new name for the time of
the dump (link_remap.N), which is gone at the restore. In /dev/shm these names are carried (`linkremaps`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.descriptors import device_name
from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.inspect.paths import DELETED, LONGEST
from slurmckpt.capture.judgements import shown
from slurmckpt.capture.processes import Process
from slurmckpt.capture.refusals import Reason

_SHM = "/dev/shm/"
# nfs_sillyrename() in Linux fs/nfs/dir.c: what NFS clients make of a file that is deleted while it is open.
_SILLY = re.compile(r"\.nfs[0-9a-f]{16,}")
_NFS = ("nfs", "nfs4")
# NAME_MAX, less what ghost_path() in CRIU's files-reg.c puts behind the name of a file that it makes anew for a moment.
_LONGEST_LOST = 255 - len(".cr.ffffffff.ghost")


def judge(seen: Inspection) -> Iterator[Reason]:
    """Each such file, open or mapped, and directories that processes work in."""
    yield from _lost(seen)
    yield from _nowhere(seen)
    yield from _taken(seen)
    yield from _long(seen)


def _lost(seen: Inspection) -> Iterator[Reason]:
    """Those of the pod's mounts: objects of the kernel's own only look like one."""
    for one in seen.descriptors.files:
        if (
            one.mount in seen.mounts
            and stat.S_ISREG(one.status.st_mode)
            and one.status.st_nlink
            and not one.path.startswith(_SHM)
        ):
            mount = seen.mounts.get(one.mount)
            silly = mount is not None and mount.kind in _NFS and _SILLY.fullmatch(os.path.basename(one.path))
            if silly or one.deleted:
                yield _reason(one.holder.process, "open", one.last_path)
    devices = {mount.device for mount in seen.mounts.values()}
    for mappings in seen.mappings:
        for path, status in mappings.deleted:
            if status.st_nlink and not path.startswith(_SHM) and device_name(status) in devices:
                yield _reason(mappings.process, "mapped", path)


def _reason(process: Process, state: str, path: str) -> Reason:
    return Reason(
        process,
        f"has {shown(path)} {state}, which was deleted or replaced and still has another name",
        "close it, or delete its other name, too",
    )


def _nowhere(seen: Inspection) -> Iterator[Reason]:
    """Those that CRIU has to make anew, for a moment, under a name that is longer than the one they had."""
    devices = {mount.device for mount in seen.mounts.values()}
    for process, path, status in [
        *(
            (one.holder.process, one.last_path, one.status)
            for one in seen.descriptors.files
            if one.mount in seen.mounts
        ),
        *((each.process, path, status) for each in seen.mappings for path, status in each.deleted),
    ]:
        here = not status.st_nlink and not stat.S_ISDIR(status.st_mode) and device_name(status) in devices
        if here and len(os.fsencode(os.path.basename(path))) > _LONGEST_LOST:
            yield Reason(
                process,
                f"uses the deleted file {shown(path)}, whose name has more than {_LONGEST_LOST} bytes, which cannot be"
                " captured",
                "give it a shorter name, or do not delete it before its end",
            )


def _taken(seen: Inspection) -> Iterator[Reason]:
    """Deleted directories whose name is there again: CRIU would take that one for it, and remove it afterwards."""
    opened = [
        (one.holder.process, "has", " open", one.last_path)
        for one in seen.descriptors.files
        if one.deleted and stat.S_ISDIR(one.status.st_mode)
    ]
    entered = [
        (place.process, "works in", "", path.removesuffix(DELETED))
        for place in seen.places
        for path in place.paths
        if path.endswith(DELETED) and not os.path.lexists(f"{procfs.PROC}/{place.process.pid}/root{path}")
    ]
    for process, has, state, path in opened + entered:
        if os.path.lexists(f"{procfs.PROC}/{process.pid}/root{path}"):
            yield Reason(
                process,
                f"{has} the deleted directory {shown(path)}{state}, of whose name there is another one, which cannot be"
                " captured",
                "leave it, or rename the new one",
            )


def _long(seen: Inspection) -> Iterator[Reason]:
    for one in seen.descriptors.files:
        if _is_too_long(one.path):
            yield _too_long(one.holder.process, f"has a file open (descriptor {one.holder.descriptor})")
    for mappings in seen.mappings:
        if any(one.is_file and (_is_too_long(one.path) or _is_too_long(one.name)) for one in mappings.special):
            yield _too_long(mappings.process, "has a file mapped")
    for place in seen.places:
        if any(_is_too_long(path) for path in place.paths):
            yield _too_long(place.process, "works in a directory")


def _is_too_long(path: str) -> bool:
    """The kernel does not show a path of more than a page."""
    return not path or len(os.fsencode(path)) > LONGEST


def _too_long(process: Process, what: str) -> Reason:
    return Reason(
        process,
        f"{what} whose path has more than {LONGEST} bytes, which cannot be captured",
        "use shorter paths",
    )
