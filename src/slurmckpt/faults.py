"""Faults that tests inject, at named places of the package (docs/reliability.md has the table).

A place is one line, `faults.at("commit.rename")`. It costs one failed open(2) as long as nobody has ordered a fault
there. An order is a file `PLACE.JOB` in DIRECTORY, for that one job. /run belongs to root and only root can make that
directory, and a directory or file that is not root's, or that others may write, is not heeded: whoever can order a
fault could as well kill the process. `slurmckpt doctor` complains about the directory, so it cannot be forgotten.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import stat
import threading
from collections import Counter
from pathlib import Path

from slurmckpt.errors import SlurmckptError

log = logging.getLogger(__name__)

DIRECTORY = Path("/run/slurmckpt-faults")

# Where the package can be made to fail, in the order in which a job comes by.
PLACES: dict[str, str] = {
    "prolog.begin": "prolog, before the job's directory exists",
    "prolog.sockets": "prolog, directory and /dev/shm made, no socket yet",
    "prolog.detach": "prolog, sockets listen, no coordinator yet",
    "coordinator.begin": "the coordinator's first step",
    "open.begin": "coordinator, before it looks at its node",
    "open.lease": "store, while the lease is taken",
    "restore.fetch": "store, while a checkpoint is copied to staging",
    "start.begin": "a step's tasks have come, no pod yet",
    "start.pod": "the pod stands, no task in it yet",
    "start.tasks": "the tasks of the pod run",
    "restore.pod": "a restore, before its pod is built",
    "restore.put_back": "a restore, before output files are put back",
    "restore.criu": "a restore, before CRIU is started",
    "restore.connected": "a restore, sockets made and silent",
    "restore.restored": "a restore, processes made, none has run",
    "restore.adopted": "a restore, pod init has the shims, none has run",
    "restore.resumed": "a restore, the ranks run",
    "capture.prepare": "a checkpoint, before anything is stopped",
    "capture.stopping": "a checkpoint, CRIU stops the processes",
    "capture.stopped": "a checkpoint, all pods stand still (first meeting)",
    "capture.measure": "a checkpoint, output is drained and measured while frozen",
    "capture.files": "a checkpoint, the content of files is saved while frozen",
    "capture.written": "a checkpoint, images written, still frozen (second meeting)",
    "capture.resumed": "a checkpoint, the ranks run again, nothing committed",
    "capture.outputs": "a checkpoint, while output files are saved",
    "commit.begin": "a commit, before the store is touched",
    "commit.copy": "store, while a file is hashed and written",
    "commit.fsync": "store, before a file is made durable",
    "commit.sign": "store, before manifest and signature are written",
    "commit.rename": "store, before the rename that publishes",
    "commit.renamed": "store, after the rename that publishes",
    "retain.prune": "store, while old checkpoints are removed",
    "stop.begin": "the epilog asks the coordinator to end",
    "stop.pods": "the job's pods are gone, its files are not",
    "settle.begin": "the job has left the node, its images stay or go",
    "settle.remove": "store, while the images of a job that is over are removed",
    "epilog.begin": "epilog, before it asks the coordinator",
}

_MAX_ORDER = 4096
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# As the hook that this process began as was told; the coordinator has no environment of Slurm's any more.
_JOB = os.environ.get("SLURM_JOB_ID", "")
_fired: Counter[str] = Counter()


class Injected(Exception):
    """What an order `raise` raises: an error that nothing expects."""


def at(place: str) -> None:
    """Do what is ordered for this place; mostly nothing.

    An order is `ACTION [TIMES]`: raise (an unexpected error), error (one of ours), E... (an OSError of that name), kill
    and stop (SIGKILL, SIGSTOP to this process), hang (this thread never goes on), or `sh` and a command for the shell
    on the lines after it. TIMES: how often in this process; without it, always.
    """
    try:
        descriptor = os.open(DIRECTORY / f"{place}.{_JOB}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        trusted = _is_roots(os.fstat(descriptor), stat.S_IFREG) and _is_roots(os.lstat(DIRECTORY), stat.S_IFDIR)
        order = os.read(descriptor, _MAX_ORDER).decode("utf-8", "replace") if trusted else ""
    finally:
        os.close(descriptor)
    if order:
        _obey(place, order)


def _is_roots(status: os.stat_result, kind: int) -> bool:
    return status.st_uid == 0 and stat.S_IFMT(status.st_mode) == kind and not status.st_mode & _WRITABLE_BY_OTHERS


def _obey(place: str, order: str) -> None:
    first, _, command = order.partition("\n")
    action, *times = first.split()
    if times and _fired[place] >= int(times[0]):
        return
    _fired[place] += 1
    log.critical("job %s: fault injected at %s: %s", _JOB, place, action)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "hang":
        threading.Event().wait()
    elif action == "sh":
        import subprocess

        subprocess.run(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, check=False)
    elif action == "raise":
        raise Injected(f"injected at {place}")
    elif action == "error":
        raise SlurmckptError(f"injected at {place}")
    else:
        number = getattr(errno, action)
        raise OSError(number, os.strerror(number), place)
