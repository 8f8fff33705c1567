"""One question to the coordinator of a job on this node."""

from __future__ import annotations

import json
import socket
from typing import Any

from slurmckpt.config import Settings
from slurmckpt.coordinator.sockets import CONTROL_SOCKET
from slurmckpt.errors import SlurmckptError


class NoCoordinator(SlurmckptError):
    """No coordinator of this job runs on this node."""


def ask(settings: Settings, job_id: int, verb: str, timeout: float | None) -> dict[str, Any]:
    """The answer to `verb`. timeout in seconds, None to wait.

    Raises NoCoordinator, or SlurmckptError with the coordinator's own reason.
    """
    path = settings.paths.run / str(job_id) / CONTROL_SOCKET
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
            control.settimeout(timeout)
            control.connect(str(path))
            control.sendall(json.dumps({"verb": verb}).encode() + b"\n")
            line = control.makefile(encoding="utf-8").readline()
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise NoCoordinator(f"no coordinator of job {job_id} runs on this node") from error
    except OSError as error:
        raise SlurmckptError(f"the coordinator of job {job_id} does not answer: {error.strerror or error}") from error
    if not line:
        raise SlurmckptError(f"the coordinator of job {job_id} ended before it answered")
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise SlurmckptError(f"the coordinator of job {job_id} gave no whole answer") from error
    if not isinstance(answer, dict) or "error" in answer:
        raise SlurmckptError(str(answer["error"]) if isinstance(answer, dict) else str(answer))
    return answer
