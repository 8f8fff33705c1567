"""slurmckpt.toml: the site's settings, checked once and then fixed.

Every key and its default is documented in etc/slurmckpt.toml; a test holds that file and these together.
"""

from slurmckpt.config.reading import DEFAULT_PATH, load
from slurmckpt.config.settings import (
    RECOVER_EVENTS,
    Capture,
    Files,
    Fingerprint,
    Gate,
    Gpu,
    Hooks,
    Log,
    Paths,
    Recover,
    Requeue,
    Restore,
    Rule,
    Schedule,
    Settings,
    Staging,
    Store,
)

__all__ = [
    "DEFAULT_PATH",
    "RECOVER_EVENTS",
    "Capture",
    "Files",
    "Fingerprint",
    "Gate",
    "Gpu",
    "Hooks",
    "Log",
    "Paths",
    "Recover",
    "Requeue",
    "Restore",
    "Rule",
    "Schedule",
    "Settings",
    "Staging",
    "Store",
    "load",
]
