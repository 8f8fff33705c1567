"""CRIU's logs of failed dumps and restores, beside the checkpoints: STORE/<cluster>/<user>/<job id>/logs/.

The sentence that a user reads names the file. Only the last few are kept, and only the end of each.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from slurmckpt.errors import StoreError
from slurmckpt.store.files import create, make_directory, write_all
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore

MAX_LOGS = 8
MAX_BYTES = 256 * 2**10

_NAME = re.compile(r"\d{8}-\d{6}-(?:dump|restore)\.log", re.ASCII)


async def keep(store: JobStore, files: UserFiles, what: str, text: str) -> Path:
    """Write the end of a log, and remove the oldest. what: `dump` or `restore`. Where it lies; raises StoreError."""
    return await files.run(_keep, store, what, text.encode(errors="replace")[-MAX_BYTES:])


def _keep(store: JobStore, name: str, data: bytes) -> Path:
    path = store.logs / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{name}.log"
    try:
        with contextlib.suppress(FileExistsError):
            make_directory(store.logs)
        # The directory is the user's, and a link may stand in its place.
        directory = os.open(store.logs, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for old in sorted(filter(_NAME.fullmatch, os.listdir(directory)))[: -MAX_LOGS + 1]:
                os.unlink(old, dir_fd=directory)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=directory)
            with create(path.name, directory) as file:
                write_all(file, data)
        finally:
            os.close(directory)
    except OSError as error:
        raise StoreError(f"CRIU's log cannot be kept at {path}: {error.strerror or error}") from error
    return path
