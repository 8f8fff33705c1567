"""Opens a job's file as its owner, who may give itself every right to it.

A file may be open for writing whose mode lets nobody write it: it was made like that and opened by one call, as `cp`
and git do with what is to be read-only, or its mode was changed later.
"""

from __future__ import annotations

import os
import stat


def open_as_owner(path: str, flags: int, root: int) -> int:
    """A descriptor of the file at `path` below the descriptor `root`; its mode is as before. Raises OSError.

    flags: of open(2), with O_NOFOLLOW and O_CLOEXEC. As the user: for a file of another's only its mode counts.
    """
    try:
        return os.open(path, flags, dir_fd=root)
    except PermissionError as denied:
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
        try:
            mode = stat.S_IMODE(os.fstat(place).st_mode)
            # The only name that leads to this very file, whatever becomes of the path.
            link = f"/proc/self/fd/{place}"
            try:
                os.chmod(link, mode | stat.S_IRUSR | stat.S_IWUSR)
            except OSError:
                raise denied from None
            try:
                return os.open(link, flags & ~os.O_NOFOLLOW)
            finally:
                os.chmod(link, mode)
        finally:
            os.close(place)
