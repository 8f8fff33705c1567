"""The prolog of a job that starts again returns when its coordinator has the lease.

Slurm empties the job's output as soon as the prolog has returned (JobFileAppend=0). A node that was given up for dead
may still run the ranks then. What it captures from that moment on has an output without its beginning, and it may
publish that until the lease is taken from it.
"""

from __future__ import annotations

import contextlib
import os
import select
import time


class WaitingProlog:
    """A pipe from the coordinator to the prolog that starts it. since: time.time() when it was made.

    Made before the fork. wait() is the prolog's, everything else the coordinator's, which must not have `reader`.
    """

    def __init__(self) -> None:
        self.since = time.time()
        self.reader, self.writer = os.pipe()
        self._waited = False

    def wait(self, seconds: float) -> None:
        """Return when the coordinator lets it go on, has ended, or after `seconds`."""
        os.close(self.writer)
        select.select([self.reader], [], [], seconds)
        os.close(self.reader)

    def let_go(self) -> bool:
        """Let the prolog return; whether it has waited until now, at the first call. False: the job may have begun."""
        if self.writer >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self.writer, b"\n")
                self._waited = True
            os.close(self.writer)
            self.writer = -1
        return self._waited
