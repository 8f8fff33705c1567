"""The files that a pod writes: what has to have the same size, at least, at a restore. And its named pipes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace

from slurmckpt.capture.inspect.descriptors import Holder, Writing
from slurmckpt.capture.inspect.inspection import Inspection
from slurmckpt.capture.inspect.mounts import KERNEL_FILE_SYSTEMS


@dataclass(frozen=True)
class OpenFile:
    """A regular file of the pod's own mounts that is open for writing, or mapped shared and writable.

    path: inside the pod. size: bytes. mode: st_mode. flags: of open(2) (O_RDWR for a mapping). pid: on this node.
    fd: -1 for a mapping. writing: where any holder may write. mapped: one has mapped it. modified: ns since 1970.
    """

    path: str
    size: int
    mode: int
    flags: int
    pid: int
    fd: int
    device: int
    inode: int
    writing: Writing = Writing.ANYWHERE
    mapped: bool = False
    modified: int = 0


def open_files(seen: Inspection) -> list[OpenFile]:
    """One entry a file and path: the first that was found, with what is true of any."""
    found: dict[tuple[int, int, str], OpenFile] = {}
    for one in _all(seen):
        first = found.setdefault((one.device, one.inode, one.path), one)
        if first is not one and (one.writing > first.writing or one.mapped > first.mapped):
            found[one.device, one.inode, one.path] = replace(
                first, writing=max(first.writing, one.writing), mapped=first.mapped or one.mapped
            )
    return list(found.values())


def named_pipes(seen: Inspection) -> list[OpenFile]:
    """The named pipes (mkfifo) that are open, by which end ever: one entry a path."""
    found: dict[str, OpenFile] = {}
    for one in seen.descriptors.files:
        if stat.S_ISFIFO(one.status.st_mode) and one.status.st_nlink and one.path.startswith("/"):
            found.setdefault(one.path, _open_file(one.path, one.status, one.flags, one.holder, one.writing))
    return list(found.values())


def _all(seen: Inspection) -> Iterator[OpenFile]:
    for one in seen.descriptors.files:
        mount = seen.mounts.get(one.mount)
        if one.is_written and mount is not None and mount.kind not in KERNEL_FILE_SYSTEMS:
            yield _open_file(one.path, one.status, one.flags, one.holder, one.writing)
    for mappings in seen.mappings:
        for path, status in mappings.files:
            if status.st_nlink:
                yield _open_file(path, status, os.O_RDWR, Holder(mappings.process, -1), Writing.ANYWHERE)


def _open_file(path: str, status: os.stat_result, flags: int, holder: Holder, writing: Writing) -> OpenFile:
    return OpenFile(
        path=path,
        size=status.st_size,
        mode=status.st_mode,
        flags=flags,
        pid=holder.process.pid,
        fd=holder.descriptor,
        device=status.st_dev,
        inode=status.st_ino,
        writing=writing,
        mapped=holder.descriptor < 0,
        modified=status.st_mtime_ns,
    )
