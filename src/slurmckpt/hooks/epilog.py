"""The epilog of a job that had a coordinator: have it end, or remove what a dead one has left. Safe to run again."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
from pathlib import Path

from slurmckpt import config, faults, logs
from slurmckpt.config import Settings
from slurmckpt.coordinator import pointer
from slurmckpt.coordinator.proc import start_time
from slurmckpt.coordinator.remains import Incarnation
from slurmckpt.coordinator.sockets import CONTROL_SOCKET
from slurmckpt.errors import ConfigError

log = logging.getLogger(__name__)

# The epilog has 7 seconds (see hand-over): most for a coordinator that ends by itself, the rest for the end by force.
_STOP_SECONDS = 5.0
_LEAST_SECONDS = 1.0


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
    """Leave nothing of a job's coordinator and pods on this node. Raises OSError."""
    directory = settings.paths.run / str(job_id)
    pointer.remove(directory)
    try:
        incarnation = Incarnation(settings, job_id)
    except OSError:
        return
    try:
        faults.at("epilog.begin")
        incarnation.stand_by()
        if _ask_to_stop(directory):
            incarnation.remove_files()
        else:
            log.warning("job %d: its coordinator does not answer; it is cleaned up without it", job_id)
            incarnation.remove()
    finally:
        incarnation.close()


def _ask_to_stop(directory: Path) -> bool:
    """Whether the coordinator says that it has ended everything."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
        control.settimeout(min(_STOP_SECONDS, max(_LEAST_SECONDS, _STOP_SECONDS - _age())))
        try:
            control.connect(str(directory / CONTROL_SOCKET))
            control.sendall(b'{"verb": "stop"}\n')
            answer = json.loads(control.makefile().readline())
            return isinstance(answer, dict) and answer.get("stopped") is True
        except (OSError, ValueError):
            return False


def _age() -> float:
    """Seconds since this process was started: on a busy machine Python alone may take some."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_time(os.getpid()) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
