"""The files of a job as they were at the boundary: those of each pod, and the directories that come along with it.

What a try has put where nothing was is kept in mind: where the job starts from its beginning instead, it goes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurmckpt.capture import fileimages
from slurmckpt.coordinator.files import carrying
from slurmckpt.coordinator.files.returning import Place, bring_back
from slurmckpt.coordinator.files.saving import CONTENT
from slurmckpt.errors import Refused
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.manifest import CarriedDirectory, StepImage


@dataclass
class Traces:
    """What one try of a restore has put where nothing was: whoever starts instead must not find it.

    parents: directories that were made for `files`. directories: those that came along with the job.
    """

    files: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)
    directories: list[carrying.Filled] = field(default_factory=list)


async def put_back(init_pid: int, image: StepImage, checkpoint: Path, files: UserFiles, traces: Traces) -> None:
    """Bring what the processes of this image had open for writing to the boundary. Raises Refused or OSError.

    init_pid: pid 1 of the pod that it is restored into. checkpoint: where that lies in staging.
    """
    with contextlib.ExitStack() as stack:
        root = _root(init_pid, stack)
        source = -1
        if any(file.content is not None for file in image.open_files):
            source = os.open(checkpoint / CONTENT, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, source)
        place = Place(root, source, image.uid, traces.files, traces.parents)
        await files.run_to_end(bring_back, image.open_files, image.absent_files, place)
    kept = {file.path for file in image.open_files if file.policy == "keep"}
    if kept:
        try:
            await asyncio.to_thread(fileimages.forget_sizes, checkpoint / image.directory / "images", kept)
        except fileimages.ImageError as error:
            raise Refused(f"the sizes of files cannot be changed in the image: {error}") from error


async def fill_carried(
    init_pid: int,
    directories: Sequence[CarriedDirectory],
    checkpoint: Path,
    uid: int,
    files: UserFiles,
    traces: Traces,
) -> None:
    """Bring the directories that come along with the job to the boundary, once for all its pods. Raises as above."""
    with contextlib.ExitStack() as stack:
        root = _root(init_pid, stack)
        for each in directories:
            source = os.open(checkpoint / each.archive, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, source)
            directory = carrying.Directory(each.path, root, uid)
            await files.run_to_end(carrying.fill, directory, source, traces.directories)


async def take_away(pid: int, uid: int, files: UserFiles, traces: Traces) -> None:
    """Undo what the two have put where nothing was. pid: of a process with the job's mounts. Raises OSError."""
    with contextlib.ExitStack() as stack:
        root = _root(pid, stack)
        await files.run_to_end(_take_away, root, uid, traces)


def _root(pid: int, stack: contextlib.ExitStack) -> int:
    """The root directory of a process: the job may have mounts of its own, as a private /tmp (namespace/tmpfs)."""
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, root)
    return root


def _take_away(root: int, uid: int, traces: Traces) -> None:
    for path in traces.files:
        with contextlib.suppress(OSError):
            os.unlink(path.lstrip("/"), dir_fd=root)
    for path in reversed(traces.parents):
        with contextlib.suppress(OSError):
            os.rmdir(path.lstrip("/"), dir_fd=root)
    for filled in traces.directories:
        with contextlib.suppress(OSError):
            carrying.empty(carrying.Directory(filled.path, root, uid), filled)
