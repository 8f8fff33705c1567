"""The signature that makes a manifest ours, and the site key that it is made with."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from pathlib import Path

from slurmckpt.errors import StoreError

MAX_KEY_BYTES = 64 * 2**10
MIN_KEY_BYTES = 16


def sign(data: bytes, key: bytes) -> str:
    """Hex HMAC-SHA256 (RFC 2104) of `data` under the site key."""
    return hmac.new(key, data, hashlib.sha256).hexdigest()


def verify(data: bytes, signature: str, key: bytes) -> bool:
    """Whether `signature` is that of `data` under `key`. The comparison takes the same time wherever they differ."""
    return hmac.compare_digest(sign(data, key).encode(), signature.encode("utf-8", "surrogateescape"))


def load_site_key(path: Path) -> bytes:
    """The site key: the content of `path` without white space around.

    Raises StoreError with one line unless it is a regular file of root, closed to all others, with 16 bytes or more.
    """
    try:
        # O_NONBLOCK: a FIFO in its place must not hold us up. O_NOFOLLOW: the checks below are about this very file.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _check_key_file(path, os.fstat(descriptor))
            key = os.read(descriptor, MAX_KEY_BYTES + 1).strip()
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreError(f"site key {path} cannot be read: {error.strerror}") from error
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise StoreError(f"site key {path} holds {len(key)} bytes; accepted: {MIN_KEY_BYTES} to {MAX_KEY_BYTES}")
    return key


def _check_key_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"site key {path} is not a regular file")
    if status.st_uid != 0:
        raise StoreError(f"site key {path} is owned by uid {status.st_uid}; it must be owned by root")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise StoreError(f"site key {path} has mode {mode:04o}; group and others must have no access (0400 or 0600)")
