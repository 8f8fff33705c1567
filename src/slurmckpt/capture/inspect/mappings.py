"""What matters to a capture in the memory maps of a process: shared writable files, devices, io_uring rings."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass

from slurmckpt.capture import procfs
from slurmckpt.capture.processes import Process

# vm.max_map_count is 65530 by default, and a line has about 100 bytes.
MAPS_BYTES = 16 << 20
# address perms offset major:minor inode [path], one mapping a line; newlines in paths come as \012 (proc_pid_maps(5)).
_SHARED_WRITABLE = re.compile(rb"^([0-9a-f]+-[0-9a-f]+) .w.s \S+ \S+ [1-9]\d* +/", re.MULTILINE)
_DEVICE = re.compile(rb"^([0-9a-f]+-[0-9a-f]+) \S{4} \S+ \S+ \d+ +(/dev/[^\n]+)$", re.MULTILINE)
_RING = b"anon_inode:[io_uring]\n"


@dataclass(frozen=True)
class Mappings:
    """What one process has mapped. Paths as seen inside the pod.

    files: regular files that are mapped shared and writable. io_uring: whether a ring is among the mappings.
    """

    process: Process
    files: list[tuple[str, os.stat_result]]
    devices: list[tuple[str, os.stat_result]]
    io_uring: bool


def read_mappings(process: Process) -> Mappings:
    """Look at the maps of one process; all empty when it has gone."""
    maps = procfs.read(f"{procfs.PROC}/{process.pid}/maps", MAPS_BYTES) or b""
    files = []
    for match in _SHARED_WRITABLE.finditer(maps):
        found = _mapped(process, match[1].decode())
        if found is not None and stat.S_ISREG(found[1].st_mode):
            files.append(found)
    devices = []
    if b" /dev/" in maps:
        for match in _DEVICE.finditer(maps):
            found = _mapped(process, match[1].decode())
            if found is not None and stat.S_ISCHR(found[1].st_mode):
                devices.append(found)
    return Mappings(process, files, devices, _RING in maps)


def _mapped(process: Process, addresses: str) -> tuple[str, os.stat_result] | None:
    """The file behind a mapping: its path, which maps itself cannot show unambiguously, and its status."""
    path = f"{procfs.PROC}/{process.pid}/map_files/{addresses}"
    target = procfs.link(path)
    if target is None:
        return None
    try:
        return target, os.stat(path)
    except OSError as error:
        if procfs.is_gone(error):
            return None
        raise
