"""Timer descriptors (timerfd_create(2)) in CRIU's image, changed so that CRIU restores them as they were.

CRIU notes what is left of each and sets it again, which goes wrong in four ways (`timerfd_arm` in CRIU's restorer.c). A
periodic one that has expired, and was not read, has nothing left: it would be switched off for ever. An absolute one
loses its fraction of a second: it would expire too early; and again, when it had expired before. One that is absolute
in the time of day would expire later by as long as the job has waited for its restore.
"""

from __future__ import annotations

import time
from pathlib import Path

from slurmckpt.capture import criu_files_pb2 as files
from slurmckpt.capture import fileimages, notes

FILE = "timers.json"
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_SECOND = 1_000_000_000


def save(images: Path) -> None:
    """Note the time of day beside the images. Raises OSError."""
    notes.save(images / FILE, {"taken": time.time_ns()})


def adjust(images: Path) -> None:
    """Change the timers of these images for a restore now. Nothing when there are none, or when it was done before.

    Raises OSError or ImageError of `fileimages`.
    """
    note = images / FILE
    found = notes.load(note)
    if found is None:
        return
    taken = found["taken"]
    passed = max(time.time_ns() - taken, 0)
    fileimages.rewrite(images, lambda entry: entry.HasField("tfd") and _adjust(entry.tfd, passed))
    note.unlink()


def _adjust(timer: files.timerfd_entry, passed: int) -> bool:
    left = timer.vsec * _SECOND + timer.vnsec
    period = timer.isec * _SECOND + timer.insec
    if not left and not period:
        # Switched off, or expired.
        was_absolute = bool(timer.settime_flags & _ABSOLUTE)
        timer.settime_flags &= ~_ABSOLUTE
        return was_absolute
    if timer.settime_flags & _ABSOLUTE and timer.clockid == time.CLOCK_REALTIME:
        # CRIU adds whole seconds of the time of day; the fraction of the moment of its end must come from here.
        now = time.time_ns()
        end = now + left - passed
        timer.vsec, timer.vnsec = max(end // _SECOND - now // _SECOND, 0), end % _SECOND
        return True
    timer.settime_flags &= ~_ABSOLUTE
    timer.vsec, timer.vnsec = divmod(max(left, 1), _SECOND)
    return True
