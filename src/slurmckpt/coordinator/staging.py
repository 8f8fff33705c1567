"""The root-only place on this node where images are written while ranks are frozen, and verified before a restore."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from pathlib import Path

from slurmckpt.config import Settings

log = logging.getLogger(__name__)

# Of a directory `<job id>.<random>.ended`, in which a job that has ended prepares its last entry in the store.
ENDED_SUFFIX = ".ended"
# settle() of a job takes two minutes at most.
_ENDED_SECONDS = 3600.0


def prepare(settings: Settings, job_id: int) -> Path:
    """The job's own directory, empty and only for root. Raises OSError."""
    root = settings.staging.path
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = root / str(job_id)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    return directory


def sweep(settings: Settings) -> None:
    """Remove what jobs left that a power cut ended: /run is empty after a boot, staging is not.

    A job's directory in /run is made before the one in staging and removed after it: one in staging alone is nobody's.
    """
    for directory in settings.staging.path.glob("[0-9]*"):
        if directory.name.isdigit() and not (settings.paths.run / directory.name).exists():
            log.info("%s is left from a job that is gone; it is removed", directory)
            shutil.rmtree(directory, ignore_errors=True)
        elif directory.name.endswith(ENDED_SUFFIX):
            with contextlib.suppress(OSError):
                if directory.lstat().st_mtime < time.time() - _ENDED_SECONDS:
                    shutil.rmtree(directory)
