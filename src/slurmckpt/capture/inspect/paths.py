"""Paths as the links of /proc show them: the kernel adds ` (deleted)` where the name is gone (Linux fs/d_path.c).

It escapes nothing, so a file may just be called that.
"""

from __future__ import annotations

import os

DELETED = " (deleted)"
# Bytes of the longest one that CRIU can read: read_fd_link() and fill_fdlink() in its util.c and files.c.
LONGEST = 4094


def has_lost_its_name(path: str, status: os.stat_result, root: str) -> bool:
    """Whether nothing is called `path`, as a link of /proc shows it, and ` (deleted)` at its end is the kernel's.

    status: of what the link leads to. root: the root directory that it is seen from, as `/proc/PID/root`. Blocks while
    a file system does not answer.
    """
    if not path.endswith(DELETED):
        return False
    if not status.st_nlink:
        return True
    try:
        return not os.path.samestat(os.lstat(f"{root}{path}"), status)
    except OSError:
        return True
