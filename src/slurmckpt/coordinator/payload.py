"""What a task, or an srun of the script, is made of, as it is handed over in a memfd (docs/architecture.md).

The user's process wrote it: it is bounded, checked, and applied only after privileges are dropped.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from slurmckpt.coordinator.wire import WireError

MAX_BYTES = 8 * 1024 * 1024  # pod/payload.h; Linux itself executes nothing with more than 6 MiB
_MAX_HEADER = 64 * 1024
_MAX_WORDS = 1_000_000
# Of what Python and we keep beside the bytes themselves.
_COST = 4096
_COST_OF_WORD = 64
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True)
class Payload:
    """header: `key=value` pairs, among them cwd, umask and fds. argv, environment: as execve(2) takes them."""

    header: dict[str, str]
    argv: list[bytes]
    environment: list[bytes]

    def numbers(self, key: str) -> list[int]:
        """The descriptor numbers that a header key lists. Raises WireError when one comes twice."""
        numbers = [int(word) for word in self.header.get(key, "").split(",") if _NUMBER.fullmatch(word)]
        if len(set(numbers)) != len(numbers):
            raise WireError(f"a payload with {key}={self.header[key][:80]!r}, which names a descriptor twice")
        return numbers

    @property
    def command(self) -> str:
        """The command line for messages: its first 200 characters."""
        return " ".join(word.decode("utf-8", "replace") for word in self.argv)[:200]

    @cached_property
    def cost(self) -> int:
        """How much memory it takes, in bytes and roughly; never less than that."""
        words = [*self.argv, *self.environment]
        header = sum(len(key) + len(value) for key, value in self.header.items())
        return _COST + 4 * header + sum(map(len, words)) + _COST_OF_WORD * len(words)

    def with_words(self, argv: Sequence[bytes], environment: Sequence[bytes]) -> Payload:
        """The same with another command line and environment."""
        return replace(self, argv=list(argv), environment=list(environment))

    def to_bytes(self) -> bytes:
        """As it travels."""
        counts = {"argc": str(len(self.argv)), "envc": str(len(self.environment))}
        pairs = [f"{key}={value}" for key, value in (self.header | counts).items()]
        header = [pair.encode("utf-8", "surrogateescape") for pair in pairs]
        return b"".join(word + b"\0" for word in [*header, b"", *self.argv, *self.environment])


def to_memfd(payload: Payload) -> int:
    """A descriptor of it, as pod/payload.c reads it. The caller closes it."""
    descriptor = os.memfd_create("payload", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(os.dup(descriptor), "wb") as file:
            file.write(payload.to_bytes())
        # Whoever reads it may rely on it.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def from_memfd(descriptor: int) -> Payload:
    """Read what a shim or stand-in handed over. Raises WireError."""
    try:
        # Only files in memory have seals. Any other file could make us wait for a file system that never answers.
        fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise WireError("a payload that is not a memfd") from error
    size = os.fstat(descriptor).st_size
    if size > MAX_BYTES:
        raise WireError(f"a payload of {size} bytes")
    return from_bytes(os.pread(descriptor, size, 0))


def from_bytes(data: bytes) -> Payload:
    """Raises WireError for what is not a payload."""
    end = data.find(b"\0\0", 0, _MAX_HEADER)
    if end < 0:
        raise WireError("a payload without a header")
    header = {}
    for word in data[:end].split(b"\0"):
        key, _, value = word.decode("utf-8", "surrogateescape").partition("=")
        header[key] = value
    argc, envc = _count(header, "argc", lowest=1), _count(header, "envc", lowest=0)
    words = data[end + 2 :].split(b"\0", argc + envc)[:-1]
    if len(words) != argc + envc:
        raise WireError(f"a payload with argc={argc}, envc={envc} and {len(words)} words")
    return Payload(header, words[:argc], words[argc:])


def _count(header: dict[str, str], key: str, lowest: int) -> int:
    text = header.get(key, "0" if lowest == 0 else "")
    if not (_NUMBER.fullmatch(text) and lowest <= int(text) <= _MAX_WORDS):
        raise WireError(f"a payload with {key}={text[:20]!r}")
    return int(text)
