"""The epilog of a job that had a coordinator: have it end, or remove what a dead one has left. Safe to run again."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from slurmckpt import config, faults, logs
from slurmckpt.config import Settings
from slurmckpt.coordinator import pointer, shm
from slurmckpt.coordinator.proc import PID_FILE, start_time
from slurmckpt.coordinator.sockets import CONTROL_SOCKET
from slurmckpt.errors import ConfigError, SlurmckptError

log = logging.getLogger(__name__)

# The epilog has 7 seconds (see hand-over): most for a coordinator that ends by itself, the rest for the end by force.
_STOP_SECONDS = 5.0
_KILL_SECONDS = 1.0


def main() -> int:
    """Always 0: an epilog that fails drains its node."""
    try:
        settings = config.load()
    except ConfigError:
        settings = Settings()
    logs.start(settings.log.path, settings.log.level, "epilog")
    try:
        clean(settings, int(os.environ["SLURM_JOB_ID"]))
    except Exception:
        log.exception("job %s", os.environ.get("SLURM_JOB_ID", "?"))
    return 0


def clean(settings: Settings, job_id: int) -> None:
    """Leave nothing of a job's coordinator and pods on this node."""
    directory = settings.paths.run / str(job_id)
    pointer.remove(directory)
    if not directory.is_dir():
        return
    faults.at("epilog.begin")
    if not _ask_to_stop(directory):
        log.warning("job %d: its coordinator does not answer; it is cleaned up without it", job_id)
        _kill_noted([directory / PID_FILE, *sorted((directory / "pods").glob("*.pid"))])
    with contextlib.suppress(SlurmckptError, OSError):
        shm.unmount(directory / "shm")
    shutil.rmtree(directory, ignore_errors=True)
    shutil.rmtree(settings.staging.path / str(job_id), ignore_errors=True)


def _ask_to_stop(directory: Path) -> bool:
    """Whether the coordinator says that it has ended everything."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
        control.settimeout(_STOP_SECONDS)
        try:
            control.connect(str(directory / CONTROL_SOCKET))
            control.sendall(b'{"verb": "stop"}\n')
            answer = json.loads(control.makefile().readline())
            return isinstance(answer, dict) and answer.get("stopped") is True
        except (OSError, ValueError):
            return False


def _kill_noted(notes: Iterable[Path]) -> None:
    """End the processes that `PID START_TIME` files name, and wait for a moment until they are gone."""
    killed: dict[int, int] = {}
    for note in notes:
        # A note that cannot be read, or whose process is gone, needs nothing.
        with contextlib.suppress(OSError, ValueError):
            pid, started = (int(word) for word in note.read_text(encoding="ascii").split())
            if start_time(pid) == started:
                killed[pid] = os.pidfd_open(pid)
                # Again: between the two looks the pid may have become another process, and that is the one we hold.
                if start_time(pid) == started:
                    signal.pidfd_send_signal(killed[pid], signal.SIGKILL)
                else:
                    os.close(killed.pop(pid))
    deadline = time.monotonic() + _KILL_SECONDS
    for pid, pidfd in killed.items():
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        if not ended.poll(max(0.0, deadline - time.monotonic()) * 1000):
            log.error("process %d does not end", pid)
        os.close(pidfd)


if __name__ == "__main__":
    sys.exit(main())
