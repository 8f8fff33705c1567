"""Notes beside CRIU's images: what it does not bring back, for the restore to put right."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TextIO


def create(path: Path) -> TextIO:
    """A new file of root's alone, for ASCII text. Raises OSError, also when there is one."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii")
