"""The names that CRIU gives to files in /dev/shm that have lost theirs, but not their last one: link_remap.N.

Semaphores are such files: sem_open(3) makes them under another name than they get. CRIU counts N in each dump for
itself, takes a name that is there already for a failure, and removes its names when the dump is over. /dev/shm is one
for all pods of a job, so two pods that are dumped together would use the same names.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from slurmckpt.capture import fileimages

_SHM = "/dev/shm/"
_NAME = re.compile(r"link_remap\.\d+")


def is_name(name: str) -> bool:
    """Whether it is one of these, set aside or not."""
    return re.fullmatch(r"link_remap\.\d+(\..+)?", name) is not None


def clean(directory: Path) -> None:
    """Remove names that a dump has left, whose CRIU was killed. directory: the pod's /dev/shm. Raises OSError."""
    for name in _present(directory):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(directory / name)


def set_aside(directory: Path, images: Path, label: str) -> dict[str, str]:
    """Give the names of the dump in `images` a label, so that the next dump can use them. Gives old path -> new path.

    Raises OSError, or ImageError of `fileimages`.
    """
    if not _present(directory):
        return {}
    renamed: dict[str, str] = {}
    for path in fileimages.paths(images):
        name = path.removeprefix(_SHM)
        if path.startswith(_SHM) and _NAME.fullmatch(name):
            os.rename(directory / name, directory / f"{name}.{label}")
            renamed[path] = f"{path}.{label}"
    return renamed


def remove(directory: Path, renamed: Mapping[str, str]) -> None:
    """Remove names that were set aside: CRIU does not know them."""
    for path in renamed.values():
        with contextlib.suppress(OSError):
            os.unlink(directory / path.removeprefix(_SHM))


def _present(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory) if _NAME.fullmatch(name)]
