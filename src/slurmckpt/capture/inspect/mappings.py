"""What the processes of a pod have mapped, from one reading of each /proc/PID/maps (proc_pid_maps(5))."""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field

from slurmckpt.capture import procfs
from slurmckpt.capture.processes import Process

# vm.max_map_count is 65530 by default, and a line has about 100 bytes.
MAPS_BYTES = 16 << 20
# addresses perms offset major:minor inode name, one mapping a line; newlines in names come as \012.
_MAPPED = re.compile(rb"(\S{4}) [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+) +(\S.*)", re.DOTALL)
_DELETED = " (deleted)"


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping that has a name, wherever it is; the same object for all that look the same but for their addresses.

    permissions: as `r-xp`. device: `MAJOR:MINOR` in decimal, as mountinfo has it. name: a path, or the kernel's word
    for what has none, as maps shows it. is_file: whether it may be a file of a file system, as opposed to an object of
    the kernel's own. is_written: whether what is written goes to the file. is_plain: whether it is but a file that is
    read, as nearly all are, or memory of the process's own.
    """

    permissions: str
    device: str
    inode: int
    name: str
    is_file: bool
    is_written: bool
    is_plain: bool

    @property
    def path(self) -> str:
        """The path that the file had; not always the right one, as maps does not tell `\\012` from a newline."""
        return self.name.removesuffix(_DELETED).replace("\\012", "\n")

    @property
    def is_deleted(self) -> bool:
        return self.name.endswith(_DELETED)

    @property
    def is_executable(self) -> bool:
        return "x" in self.permissions


@dataclass(frozen=True)
class Mappings:
    """What one process has mapped.

    named: all mappings that have a name. addresses: of each of them, its name in map_files. files, devices: path, as
    seen inside the pod, and status of the regular files that are mapped shared and writable, and of the character
    devices. deleted: the same of regular files that have lost the name that they were mapped by.
    """

    process: Process
    named: list[Mapping] = field(default_factory=list)
    addresses: list[bytes] = field(default_factory=list)
    files: list[tuple[str, os.stat_result]] = field(default_factory=list)
    devices: list[tuple[str, os.stat_result]] = field(default_factory=list)
    deleted: list[tuple[str, os.stat_result]] = field(default_factory=list)

    @functools.cached_property
    def special(self) -> list[Mapping]:
        """Those of the named ones that are not plain."""
        return [one for one in self.named if not one.is_plain]


def read_mappings(processes: Iterable[Process]) -> list[Mappings]:
    """Look at the maps of each process; empty for one that has gone. Blocks while a file system does not answer."""
    known = _Known()
    found: list[Mappings] = []
    for process in processes:
        text = procfs.read(f"{procfs.PROC}/{process.pid}/maps", MAPS_BYTES) or b""
        lines = [line.partition(b" ") for line in text.split(b"\n")]
        named = [(one, addresses) for addresses, _, what in lines if (one := known[what]) is not None]
        mappings = Mappings(process, [one for one, _ in named], [addresses for _, addresses in named])
        _look_closer(mappings)
        found.append(mappings)
    return found


class _Known(dict[bytes, Mapping | None]):
    """Processes of one program have mapped the same, at other addresses: each line is taken apart once."""

    def __missing__(self, what: bytes) -> Mapping | None:
        mapping = self[what] = parse_mapping(what)
        return mapping


def parse_mapping(text: bytes) -> Mapping | None:
    """A line of maps without its addresses; None for a mapping without a name."""
    match = _MAPPED.fullmatch(text)
    if match is None:
        return None
    permissions, inode, name = match[1].decode("ascii", errors="replace"), int(match[4]), os.fsdecode(match[5])
    is_file = inode > 0 and name.startswith("/")
    is_written = permissions[1] == "w" and permissions[3] == "s"
    unchanged = is_file and not is_written and not name.endswith(_DELETED) and not name.startswith("/dev/")
    return Mapping(
        permissions=permissions,
        # hexadecimal in maps
        device=f"{int(match[2], 16)}:{int(match[3], 16)}",
        inode=inode,
        name=name,
        is_file=is_file,
        is_written=is_written,
        is_plain=unchanged or name.startswith("["),
    )


def _look_closer(mappings: Mappings) -> None:
    """At what is written through a mapping, at devices, and at what was deleted."""
    for one, addresses in zip(mappings.named, mappings.addresses, strict=True):
        if one.is_plain or not one.is_file:
            continue
        found = _mapped(mappings.process, os.fsdecode(addresses))
        if found is None:
            continue
        if stat.S_ISCHR(found[1].st_mode):
            mappings.devices.append(found)
        elif stat.S_ISREG(found[1].st_mode):
            if one.is_written:
                mappings.files.append(found)
            if one.is_deleted:
                mappings.deleted.append(found)


def _mapped(process: Process, addresses: str) -> tuple[str, os.stat_result] | None:
    """The file behind a mapping: its path, which maps itself cannot show unambiguously, and its status."""
    path = f"{procfs.PROC}/{process.pid}/map_files/{addresses}"
    target = procfs.link(path)
    status = procfs.status(path)
    return None if target is None or status is None else (target, status)
