"""The job's output files: measured at the boundary, saved with the checkpoint, put back at the restore.

Slurm truncates a job's output file when it starts the job again (JobFileAppend=0), so the part up to the boundary
belongs to the checkpoint; what was written after the boundary will be written again, so it is cut off. No line is lost
and none doubled.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from slurmckpt import faults
from slurmckpt.coordinator.streams import OutputHolder
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.manifest import OutputFile

log = logging.getLogger(__name__)

_CHUNK = 4 * 1024 * 1024
_UNDO_BYTES = 16 * 1024 * 1024


def measure(holders: Iterable[OutputHolder]) -> list[tuple[OutputFile, OutputHolder]]:
    """One entry for each file, with its size now and the offset of each holder. Raises OSError.

    To be called while nothing writes to them.
    """
    found: dict[tuple[int, int], tuple[OutputFile, OutputHolder]] = {}
    for holder in holders:
        status = os.fstat(holder.descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink == 0:
            continue
        offset = os.lseek(holder.descriptor, 0, os.SEEK_CUR)
        known = found.get((status.st_dev, status.st_ino))
        if known is None:
            entry = OutputFile(path=holder.path, size=status.st_size, content=None, holders={holder.name: offset})
            found[status.st_dev, status.st_ino] = (entry, holder)
        else:
            known[0].holders[holder.name] = offset
    return list(found.values())


async def save(
    measured: Sequence[tuple[OutputFile, OutputHolder]], staging: Path, files: UserFiles, max_output: int
) -> list[OutputFile]:
    """Copy each file's content up to its size into `staging`/output; one larger than `max_output` bytes is only noted.

    Raises OSError.
    """
    faults.at("capture.outputs")
    directory = staging / "output"
    directory.mkdir(mode=0o700)
    entries = []
    for number, (entry, holder) in enumerate(measured):
        content: str | None = None
        if entry.size > max_output:
            log.warning("output file %s of %d bytes is not saved (capture.max_output)", entry.path, entry.size)
        else:
            try:
                # Opened anew by the user: the job's own descriptor is for writing only, and root may not read the file.
                source = await files.run(os.open, f"/proc/self/fd/{holder.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                log.warning("output file %s cannot be read: %s", entry.path, error.strerror)
            else:
                content = str(number)
                await asyncio.to_thread(_copy, source, directory / content, entry.size)
        entries.append(OutputFile(path=entry.path, size=entry.size, content=content, holders=entry.holders))
    return entries


async def remember(holders: Sequence[OutputHolder], directory: Path, files: UserFiles) -> list[OutputFile]:
    """The files as they are before a restore is tried: what put_back() needs, with `directory`, to undo it.

    directory: made here. A large file was not truncated by Slurm, so a restore does not change how it begins: of such
    a file the size is enough. Raises OSError.
    """
    directory.mkdir(mode=0o700, parents=True)
    measured = measure(holders)
    small = [(entry, holder) for entry, holder in measured if entry.size <= _UNDO_BYTES]
    large = [entry for entry, _ in measured if entry.size > _UNDO_BYTES]
    return [*await save(small, directory, files, _UNDO_BYTES), *large]


async def put_back(
    entries: Iterable[OutputFile], holders: Iterable[OutputHolder], staging: Path, files: UserFiles
) -> list[str]:
    """Bring every output file that has a holder of the same name to its state at the boundary.

    Gives one line for each that cannot be. To be called before anything that writes to them runs. Files are reached
    through the descriptors the job itself opened, and with the user's identity: what the user made of these descriptors
    (a file of /proc that asks for the writer's rights) must not get root's. Raises OSError.
    """
    by_name = {holder.name: holder for holder in holders}
    complaints: list[str] = []
    for entry in entries:
        present = [(by_name[name], offset) for name, offset in entry.holders.items() if name in by_name]
        present = [(holder, offset) for holder, offset in present if stat.S_ISREG(os.fstat(holder.descriptor).st_mode)]
        if not present:
            continue
        content = None
        if entry.content is not None:
            content = os.open(staging / "output" / entry.content, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        complaints += await files.run_to_end(_put_one_back, entry, present, content)
    return complaints


def _put_one_back(entry: OutputFile, present: Sequence[tuple[OutputHolder, int]], content: int | None) -> list[str]:
    """One file, on the user's side. content: opened for reading; closed here."""
    complaints = []
    descriptor, appends = present[0][0].descriptor, present[0][0].appends
    if content is not None:
        _rewrite(descriptor, content, appends)
    elif os.fstat(descriptor).st_size >= entry.size:
        os.ftruncate(descriptor, entry.size)
    else:
        complaints.append(f"the first {entry.size} bytes of {entry.path} were not saved and are lost")
        if not all(holder.appends for holder, _ in present):
            # Who writes at an offset goes on there, and CRIU wants the size that it saw; what is lost reads as zeros.
            os.ftruncate(descriptor, entry.size)
    for holder, offset in present:
        os.lseek(holder.descriptor, offset, os.SEEK_SET)
    return complaints


def _copy(source: int, target: Path, size: int) -> None:
    with open(source, "rb", buffering=0) as reader, target.open("xb") as writer:
        os.fchmod(writer.fileno(), 0o600)
        left = size
        while left:
            chunk = reader.read(min(left, _CHUNK))
            if not chunk:
                # The program shortened its own output after the boundary; what is gone cannot be saved.
                raise OSError(f"an output file became shorter than {size} bytes")
            writer.write(chunk)
            left -= len(chunk)


def _rewrite(descriptor: int, content: int, appends: bool) -> None:
    with open(content, "rb", buffering=0) as reader:
        # Emptied first: a descriptor that appends writes at the end wherever its offset is (pwrite(2), BUGS).
        os.ftruncate(descriptor, 0)
        if not appends:
            os.lseek(descriptor, 0, os.SEEK_SET)
        while chunk := reader.read(_CHUNK):
            view = memoryview(chunk)
            while view:
                view = view[os.write(descriptor, view) :]
