"""A link at the place where the epilog's shell script looks for a job, when paths.run is another one.

The script (epilog/epilog) cannot read slurmckpt.toml, and must not start Python for jobs that have no coordinator.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PLACE = Path("/run/slurmckpt")


def leave(directory: Path) -> None:
    """For a job whose sockets and state are in `directory`. Raises OSError."""
    if directory.parent != PLACE:
        PLACE.mkdir(mode=0o755, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(PLACE / directory.name)
        (PLACE / directory.name).symlink_to(directory)


def remove(directory: Path) -> None:
    """Undo leave(). Nothing there is fine. Raises OSError."""
    pointer = PLACE / directory.name
    if directory.parent != PLACE and pointer.is_symlink():
        pointer.unlink()
