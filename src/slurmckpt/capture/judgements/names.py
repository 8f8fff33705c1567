"""Files that have lost the name they were opened by, and have another one.

Of a file without any name CRIU keeps the content. For one that has a name somewhere it makes a new name for the time of
the dump (link_remap.N), which is gone at the restore. In /dev/shm these names are carried (`linkremaps`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

from slurmckpt.capture.inspect.descriptors import device_name
from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.judgements import shown
from slurmckpt.capture.processes import Process
from slurmckpt.capture.refusals import Reason

_SHM = "/dev/shm/"
_DELETED = " (deleted)"
# nfs_sillyrename() in Linux fs/nfs/dir.c: what NFS clients make of a file that is deleted while it is open.
_SILLY = re.compile(r"\.nfs[0-9a-f]{16,}")
_NFS = ("nfs", "nfs4")


def judge(seen: Inspection) -> Iterator[Reason]:
    """Each such file of the pod's mounts, open or mapped: objects of the kernel's own only look like one."""
    for one in seen.descriptors.files:
        if (
            one.mount in seen.mounts
            and stat.S_ISREG(one.status.st_mode)
            and one.status.st_nlink
            and not one.path.startswith(_SHM)
        ):
            mount = seen.mounts.get(one.mount)
            silly = mount is not None and mount.kind in _NFS and _SILLY.fullmatch(os.path.basename(one.path))
            if silly or one.path.endswith(_DELETED):
                yield _reason(one.holder.process, "open", one.path)
    devices = {mount.device for mount in seen.mounts.values()}
    for mappings in seen.mappings:
        for path, status in mappings.deleted:
            if status.st_nlink and not path.startswith(_SHM) and device_name(status) in devices:
                yield _reason(mappings.process, "mapped", path)


def _reason(process: Process, state: str, path: str) -> Reason:
    return Reason(
        process,
        f"has {shown(path.removesuffix(_DELETED))} {state}, which was deleted or replaced and still has another name",
        "close it, or delete its other name, too",
    )
