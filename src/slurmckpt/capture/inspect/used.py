"""The files that a pod reads: what a restore needs to find unchanged."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from slurmckpt.capture import procfs
from slurmckpt.capture.inspect.descriptors import Descriptors
from slurmckpt.capture.inspect.mappings import Mappings
from slurmckpt.capture.inspect.mounts import Mount

# A holder may end before its link is followed; the next one may do then.
_LINKS = 3


@dataclass
class UsedFile:
    """A file that is mapped, or open for reading only. path: as seen inside the pod. device: `MAJOR:MINOR` in decimal.

    root: where that root directory is seen from here, as long as a process that has the file lives. executable: whether
    it is mapped so. links: in /proc, a few: each leads to the file itself, whatever has become of its name, as long as
    that process lives. Only root may follow them.
    """

    path: str
    device: str
    inode: int
    root: str
    executable: bool = False
    links: list[str] = field(default_factory=list)


def used_files(descriptors: Descriptors, mappings: Sequence[Mappings], mounts: dict[int, Mount]) -> list[UsedFile]:
    """Each file once under each of its names, in the order of the names; but none that the pod writes, anywhere.

    Without those of FUSE file systems: their content is what a program of the user's makes up, and reading it may hang.
    """
    fuse = {mount.device for mount in mounts.values() if mount.is_fuse}
    written = set(_written(descriptors, mappings))
    found: dict[tuple[str, str, int], UsedFile] = {}
    for file in (*_mapped(mappings), *_read(descriptors)):
        if file.device not in fuse and (file.device, file.inode) not in written:
            known = found.setdefault((file.path, file.device, file.inode), file)
            if known is not file:
                known.executable = known.executable or file.executable
                known.links = (known.links + file.links)[:_LINKS]
    return sorted(found.values(), key=lambda file: file.path)


def _written(descriptors: Descriptors, all_mappings: Iterable[Mappings]) -> Iterator[tuple[str, int]]:
    """Device and inode."""
    yield from ((one.device, one.status.st_ino) for one in descriptors.files if one.may_write)
    for mappings in all_mappings:
        yield from ((one.device, one.inode) for one in mappings.special if one.is_written)


def _mapped(all_mappings: Iterable[Mappings]) -> Iterator[UsedFile]:
    # Processes of one program have the same Mapping objects, thousands of them.
    alike: Counter[tuple[int, ...]] = Counter()
    times: Counter[int] = Counter()
    for mappings in all_mappings:
        shape = tuple(map(id, mappings.named))
        alike[shape] += 1
        if alike[shape] > _LINKS:
            continue
        base = f"{procfs.PROC}/{mappings.process.pid}"
        for one, addresses in zip(mappings.named, mappings.addresses, strict=True):
            if one.is_file and times[id(one)] < _LINKS:
                times[id(one)] += 1
                link = f"{base}/map_files/{addresses.decode()}"
                yield UsedFile(one.path, one.device, one.inode, f"{base}/root", one.is_executable, [link])


def _read(descriptors: Descriptors) -> Iterator[UsedFile]:
    for one in descriptors.files:
        if stat.S_ISREG(one.status.st_mode) and not one.may_write:
            root = f"{procfs.PROC}/{one.holder.process.pid}/root"
            yield UsedFile(one.last_path, one.device, one.status.st_ino, root, links=[one.link])
