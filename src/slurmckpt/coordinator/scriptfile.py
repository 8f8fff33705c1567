"""The file that holds the batch script.

Shells read it as they go, so it is open while the script runs. slurmd puts it into its spool directory, whose path may
hold the node's name (`SlurmdSpoolDir=/var/spool/slurmd.%n`): on another node the same script lies elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace

# Slurm refuses scripts above max_script_size, by default 4 MiB and at most 512 MiB (slurm.conf(5)).
_MAX_BYTES = 512 * 1024 * 1024
_CHUNK = 1024 * 1024
# slurmd's name for it.
NAME = "slurm_script"


@dataclass(frozen=True)
class ScriptFile:
    """path: as slurmd gave it to the batch step. digest: SHA-256 of its content. Both empty when there is none.

    paths: that one, and those on the nodes where the script was before; none but those that slurmd has used.
    """

    path: str = ""
    digest: str = ""
    paths: tuple[str, ...] = ()

    def known_at(self, paths: Iterable[str]) -> ScriptFile:
        """The same, where it was at these paths, too."""
        return replace(self, paths=tuple(dict.fromkeys((*paths, *self.paths))))


NONE = ScriptFile()


def read(path: str) -> ScriptFile:
    """The script at this path, or NONE when no regular file can be read there. To be called as the job's user."""
    digest, left = hashlib.sha256(), _MAX_BYTES
    try:
        # The path was said by the user's process: it must not make us wait, nor lead to anything but a file.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return NONE
            while left > 0 and (chunk := file.read(_CHUNK)):
                digest.update(chunk)
                left -= len(chunk)
    except (OSError, ValueError):
        return NONE
    return ScriptFile(path, digest.hexdigest())
