"""The errors that slurmckpt raises on purpose. str() of each is one line that a user can read."""

from __future__ import annotations


class SlurmckptError(Exception):
    """Parent of all errors of this package."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class ConfigError(SlurmckptError):
    """A setting is unknown, ill-typed or out of range: names the file, the key, the value and what is accepted."""


class StoreError(SlurmckptError):
    """The store, the staging directory or the site key cannot be used."""


class SlurmError(SlurmckptError):
    """Slurm refused a request or did not answer."""


class NoSuchJobError(SlurmError):
    """Slurm does not know this job, or not any more."""


class Refused(SlurmckptError):
    """This checkpoint cannot be used. The message is the reason."""

    @property
    def reason(self) -> str:
        """Why the checkpoint is refused, in one line."""
        return str(self)


def one_line(text: str, limit: int = 1000) -> str:
    """`text` fit for a log or a terminal: control characters made visible, at most `limit` characters.

    Messages quote names and values that users chose; a newline or an escape sequence in them must not forge log lines.
    """
    safe = text
    if not text.isprintable():
        safe = "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)
    return safe if len(safe) <= limit else safe[: limit - 3] + "..."
