"""Files that belong to an open one, though no process may have them open at the boundary.

An SQLite database is changed together with its rollback journal or its write-ahead log. Whoever finds the journal of a
later transaction beside the database of the boundary would roll that back, into a database that never had it.
"""

from __future__ import annotations

import os

# sqlite.org/fileformat2.html, "The Database Header", "The Rollback Journal", "The Write-Ahead Log"; for the wal-index
# (-shm) sqlite.org/walformat.html.
_SQLITE = b"SQLite format 3\0"
_SQLITE_SUFFIXES = ("-journal", "-wal", "-shm")


def of(path: str, descriptor: int) -> list[str]:
    """The paths of the files that belong to this one, open for reading, whether they exist or not. Raises OSError."""
    if os.pread(descriptor, len(_SQLITE), 0) == _SQLITE:
        return [path + suffix for suffix in _SQLITE_SUFFIXES]
    return []
