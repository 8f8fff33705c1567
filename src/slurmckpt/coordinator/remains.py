"""What a job has on this node when nobody is there to take it away: its coordinator has died, hangs, or is not heard.

Three come for it, one after the other, so that the death of one is not the end of the matter: the epilog, a process
that outlives it (stand_by), and the coordinators of other jobs (neighbours). All end by force what is noted, and only
the incarnation that they have seen: the directory in /run stands for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from slurmckpt.config import Settings
from slurmckpt.coordinator import pointer, scriptpaths, shm
from slurmckpt.coordinator.proc import PID_FILE, noted, start_time
from slurmckpt.errors import SlurmckptError

log = logging.getLogger(__name__)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Until what was killed is gone: an epilog and a prolog have seconds, nobody waits for the others.
_KILL_SECONDS = 1.0
_PATIENT_SECONDS = 20.0
# For one of the others who is at it: they need no more than the kill.
_TURN_SECONDS = 3.0
_LOOK_SECONDS = 0.02
# hand-over gives epilog and prolog 8 s.
_HOOK_SECONDS = 60.0


class Incarnation:
    """The run directory of one incarnation, held open: whatever has its name later is another one's."""

    def __init__(self, settings: Settings, job_id: int) -> None:
        """Raises OSError when there is none."""
        self._settings = settings
        self.job_id = job_id
        self.directory = settings.paths.run / str(job_id)
        self._held = os.open(self.directory, _DIRECTORY)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._held)

    @property
    def here(self) -> bool:
        """Whether it still has its directory."""
        try:
            found, own = os.stat(self.directory, follow_symlinks=False), os.fstat(self._held)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)

    def remove(self, patience: float = _KILL_SECONDS) -> None:
        """End its processes and remove its files; nothing when somebody else has done so. Raises OSError.

        patience: seconds until the processes must be gone; files are removed all the same.
        """
        self._take_turn()
        if self.here:
            notes = [self.directory / PID_FILE, *sorted((self.directory / "pods").glob("*.pid"))]
            kill_noted(notes, patience)
            self.remove_files()

    def remove_files(self) -> None:
        """Its files on this node, its /dev/shm among them."""
        with contextlib.suppress(SlurmckptError, OSError):
            shm.unmount(self.directory / "shm")
        # Before the directory in /run: without that, staging would be anybody's.
        shutil.rmtree(self._settings.staging.path / str(self.job_id), ignore_errors=True)
        with contextlib.suppress(OSError):
            pointer.remove(self.directory)
        scriptpaths.remove(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)

    def stand_by(self) -> None:
        """Have a process of its own look again when this one, an epilog or prolog, has ended or been killed."""
        hook = os.pidfd_open(os.getpid())
        # Time may be up at this very moment.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            if os.fork():
                return
            status = 1
            try:
                # Out of the process group that hand-over ends.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.setsid()
                _wait(hook, _HOOK_SECONDS)
                if self.here:
                    log.warning("job %d: its end was left unfinished; it is cleaned up now", self.job_id)
                    self.remove(_PATIENT_SECONDS)
                status = 0
            except Exception:
                log.exception("job %d", self.job_id)
            finally:
                os._exit(status)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(hook)

    def _take_turn(self) -> None:
        """Nobody else removes it meanwhile. Given back by close(). Raises TimeoutError."""
        deadline = time.monotonic() + _TURN_SECONDS
        while True:
            try:
                fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"somebody else is removing {self.directory}") from None
                time.sleep(_LOOK_SECONDS)


def kill_noted(notes: Iterable[Path], patience: float) -> None:
    """End the processes that `PID START_TIME` files name, and wait until they are gone, for `patience` seconds."""
    killed: dict[int, int] = {}
    for note in notes:
        # A note that cannot be read, or whose process is gone, needs nothing.
        with contextlib.suppress(OSError, ValueError):
            pid, started = noted(note)
            if start_time(pid) == started:
                killed[pid] = os.pidfd_open(pid)
                # Again: between the two looks the pid may have become another process, and that is the one we hold.
                if start_time(pid) == started:
                    signal.pidfd_send_signal(killed[pid], signal.SIGKILL)
                else:
                    os.close(killed.pop(pid))
    deadline = time.monotonic() + patience
    for pid, pidfd in killed.items():
        if not _wait(pidfd, max(0.0, deadline - time.monotonic())):
            log.error("process %d does not end", pid)
        os.close(pidfd)


def _wait(pidfd: int, seconds: float) -> bool:
    """Whether the process has ended, after `seconds` at most."""
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    return bool(ended.poll(seconds * 1000))
