"""Where a job's coordinator is reached: task.sock for plugin and shims, control.sock for its user and for root."""

from __future__ import annotations

import os
import socket
from pathlib import Path

TASK_SOCKET = "task.sock"
CONTROL_SOCKET = "control.sock"
_BACKLOG = 512


def bind(run: Path) -> tuple[socket.socket, socket.socket]:
    """Make both sockets of a job in `run`, listening: from here on a connection waits and is not refused."""
    sockets = []
    for name, kind, mode in ((TASK_SOCKET, socket.SOCK_SEQPACKET, 0o600), (CONTROL_SOCKET, socket.SOCK_STREAM, 0o666)):
        listener = socket.socket(socket.AF_UNIX, kind)
        path = run / name
        path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        path.chmod(mode)
        listener.listen(_BACKLOG)
        sockets.append(listener)
    return sockets[0], sockets[1]
