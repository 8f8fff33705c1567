"""Notes beside CRIU's images: what it does not bring back, for the restore to put right."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TextIO


def create(path: Path) -> TextIO:
    """A new file of root's alone, for ASCII text. Raises OSError, also when there is one."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii")


def save(path: Path, content: object) -> None:
    """Note it, as JSON. Raises OSError, also when there is such a note."""
    text = json.dumps(content)
    with create(path) as file:
        file.write(text)


def load(path: Path) -> Any:
    """What save() has noted there; None without such a note. Raises OSError, or ValueError for what is none."""
    try:
        return json.loads(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return None
