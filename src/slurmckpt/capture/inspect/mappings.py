"""What the processes of a pod have mapped, from one reading of each /proc/PID/maps (proc_pid_maps(5))."""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.paths import DELETED, LONGEST, has_lost_its_name
from slurmckpt.capture.processes import Process

# vm.max_map_count is 65530 by default, and a line has about 100 bytes.
MAPS_BYTES = 16 << 20
# addresses perms offset major:minor inode name, one mapping a line; newlines in names come as \012.
_MAPPED = re.compile(rb"(\S{4}) [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+) +(\S.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping that has a name, wherever it is; the same object for all that look the same but for their addresses.

    permissions: as `r-xp`. device: `MAJOR:MINOR` in decimal, as mountinfo has it. name: a path, or the kernel's word
    for what has none, as maps shows it. path: the one that the file has or, where is_deleted, had. is_doubtful: whether
    these two are a guess. is_file: whether it may be a file of a file system, as opposed to an object of the kernel's
    own. is_written: whether what is written goes to the file. is_plain: whether it is but a file that is read, with a
    path of no more than LONGEST bytes, as nearly all are, or memory of the process's own.
    """

    permissions: str
    device: str
    inode: int
    name: str
    path: str
    is_deleted: bool
    is_doubtful: bool
    is_file: bool
    is_written: bool
    is_plain: bool

    @property
    def is_executable(self) -> bool:
        return "x" in self.permissions


@dataclass(frozen=True)
class Mappings:
    """What one process has mapped.

    named: all mappings that have a name. addresses: of each of them, its name in map_files. files: path, as
    seen inside the pod, and status of the regular files that are mapped shared and writable and have that name.
    devices: of the character devices. deleted: of regular files that have lost the name that they were mapped by.
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
        named: list[tuple[Mapping, bytes]] = []
        for addresses, _, what in lines:
            if (one := known[what]) is not None:
                if one.is_doubtful:
                    one = known[what] = _resolved(one, process, addresses)
                named.append((one, addresses))
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
    """A line of maps without its addresses; None for a mapping without a name.

    Newlines of a path are written as `\\012` there, and nothing else is escaped, backslashes neither.
    """
    match = _MAPPED.fullmatch(text)
    if match is None:
        return None
    permissions, inode, name = match[1].decode("ascii", errors="replace"), int(match[4]), os.fsdecode(match[5])
    is_file = inode > 0 and name.startswith("/")
    is_written = permissions[1] == "w" and permissions[3] == "s"
    is_deleted = is_file and name.endswith(DELETED)
    return Mapping(
        permissions=permissions,
        # hexadecimal in maps
        device=f"{int(match[2], 16)}:{int(match[3], 16)}",
        inode=inode,
        name=name,
        path=(name.removesuffix(DELETED) if is_deleted else name).replace("\\012", "\n"),
        is_deleted=is_deleted,
        is_doubtful=is_deleted or (is_file and "\\012" in name),
        is_file=is_file,
        is_written=is_written,
        is_plain=_is_plain(name, is_file, is_written, is_deleted),
    )


def _is_plain(name: str, is_file: bool, is_written: bool, is_deleted: bool) -> bool:
    unchanged = is_file and not is_written and not is_deleted and not name.startswith("/dev/")
    return (unchanged and len(os.fsencode(name)) <= LONGEST) or name.startswith("[")


def _resolved(one: Mapping, process: Process, addresses: bytes) -> Mapping:
    """Its path as the link to the file itself shows it; as it is when that has gone."""
    found = _mapped(process, os.fsdecode(addresses))
    if found is None:
        return one
    path, status = found
    is_deleted = has_lost_its_name(path, status, f"{procfs.PROC}/{process.pid}/root")
    return replace(
        one,
        path=path.removesuffix(DELETED) if is_deleted else path,
        is_deleted=is_deleted,
        is_doubtful=False,
        is_plain=_is_plain(one.name, one.is_file, one.is_written, is_deleted),
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
            if one.is_deleted:
                mappings.deleted.append((one.path, found[1]))
            elif one.is_written:
                mappings.files.append(found)


def _mapped(process: Process, addresses: str) -> tuple[str, os.stat_result] | None:
    """The file behind a mapping: its path, which maps itself cannot show unambiguously, and its status."""
    path = f"{procfs.PROC}/{process.pid}/map_files/{addresses}"
    target = procfs.link(path)
    status = procfs.status(path)
    return None if target is None or status is None else (target, status)
