"""Payloads (docs/architecture.md, "The payload memfd"), as shims write them and as they should not."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence


def memfd(data: bytes) -> int:
    fd = os.memfd_create("test-payload")
    os.write(fd, data)
    return fd


def payload_header(payload: int) -> dict[str, str]:
    """The header of what a shim wrote."""
    header = os.pread(payload, 1 << 20, 0).partition(b"\0\0")[0].decode()
    return dict(line.split("=", 1) for line in header.split("\0"))


def payload_bytes(
    argv: Sequence[str], extra: Mapping[str, str] | None = None, *, cwd: str = "/", env: Sequence[str] = ()
) -> bytes:
    """A payload as a shim writes it, from the contract in docs/architecture.md."""
    header = {
        "v": "1",
        "argc": str(len(argv)),
        "envc": str(len(env)),
        "cwd": cwd,
        "umask": "022",
        "fds": "0,1,2",
        **(extra or {}),
    }
    lines = [f"{key}={value}" for key, value in header.items()]
    return b"".join(line.encode() + b"\0" for line in (*lines, "", *argv, *env))
