"""Hook commands: what the site or a job runs in the pod before and after a checkpoint, and after a restore."""

from __future__ import annotations

# As spank/values.c has it.
MAX_BYTES = 1000
ACCEPTED_COMMAND = f"a command of 1 to {MAX_BYTES} bytes without control characters"


def is_command(text: str) -> bool:
    """Whether a shell command is accepted."""
    size = len(text.encode("utf-8", "surrogateescape"))
    return size <= MAX_BYTES and bool(text.strip(" ")) and all(c >= " " and c != "\x7f" for c in text)


def parse_command(text: str) -> str:
    """A command of the settings; empty: none. Raises ValueError."""
    if text and not is_command(text):
        raise ValueError(f"{text[:80]!r} is not {ACCEPTED_COMMAND}")
    return text
