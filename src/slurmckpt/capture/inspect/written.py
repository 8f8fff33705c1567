"""The files that a pod writes: what has to have the same size, at least, at a restore."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from slurmckpt.capture.inspect.descriptors import Holder
from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.inspect.mounts import KERNEL_FILE_SYSTEMS


@dataclass(frozen=True)
class OpenFile:
    """A regular file of the pod's own mounts that is open for writing, or mapped shared and writable.

    path: inside the pod. size: bytes. mode: st_mode. flags: of open(2) (O_RDWR for a mapping). pid: on this node.
    fd: -1 for a mapping. in_place: some holder may change what is there already. mapped: one has mapped it. modified:
    ns since 1970.
    """

    path: str
    size: int
    mode: int
    flags: int
    pid: int
    fd: int
    device: int
    inode: int
    in_place: bool = False
    mapped: bool = False
    modified: int = 0


def open_files(seen: Inspection) -> list[OpenFile]:
    """One entry a file and path: the first that was found, with what is true of any."""
    found: dict[tuple[int, int, str], OpenFile] = {}
    for one in _all(seen):
        first = found.setdefault((one.device, one.inode, one.path), one)
        if first is not one and (one.in_place > first.in_place or one.mapped > first.mapped):
            found[one.device, one.inode, one.path] = replace(
                first, in_place=first.in_place or one.in_place, mapped=first.mapped or one.mapped
            )
    return list(found.values())


def _all(seen: Inspection) -> Iterator[OpenFile]:
    for one in seen.descriptors.files:
        mount = seen.mounts.get(one.mount)
        if one.is_written and mount is not None and mount.kind not in KERNEL_FILE_SYSTEMS:
            yield _open_file(one.path, one.status, one.flags, one.holder, one.is_written_in_place)
    for mappings in seen.mappings:
        for path, status in mappings.files:
            if status.st_nlink and not path.endswith(" (deleted)"):
                yield _open_file(path, status, os.O_RDWR, Holder(mappings.process, -1), True)


def _open_file(path: str, status: os.stat_result, flags: int, holder: Holder, in_place: bool) -> OpenFile:
    return OpenFile(
        path=path,
        size=status.st_size,
        mode=status.st_mode,
        flags=flags,
        pid=holder.process.pid,
        fd=holder.descriptor,
        device=status.st_dev,
        inode=status.st_ino,
        in_place=in_place,
        mapped=holder.descriptor < 0,
        modified=status.st_mtime_ns,
    )
