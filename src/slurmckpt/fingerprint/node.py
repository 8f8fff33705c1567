"""The part of the fingerprint that belongs to a node, and the node feature that stands for it in Slurm."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from slurmckpt.config import Rule, Settings
from slurmckpt.fingerprint.compare import Fingerprint, rule_for
from slurmckpt.fingerprint.gpu import gpu
from slurmckpt.fingerprint.host import host

_NODE_KEYS = ("host.", "gpu.", "site.")
# Part of what is hashed: raise it when the meaning of a key changes.
_FORMAT = "slurmckpt node feature 1"


def node_fingerprint(settings: Settings, criu_version: str) -> Fingerprint:
    """This node's keys: host, GPUs and driver, and the site's own facts from slurmckpt.toml. Raises OSError."""
    site = {f"site.{name}": value for name, value in settings.fingerprint.site.items()}
    return host(criu_version) | gpu() | site


def node_feature(fingerprint: Mapping[str, str], rules: Mapping[str, Rule] | None = None) -> str:
    """The node feature `slurmckpt-<12 hex digits>`: equal exactly where all node keys that matter are equal.

    Keys of the engine and the model, and those that are informative under the rules, are left out. It is stricter than
    compare(), which accepts more than equal for an at-least key; a node feature cannot say "more".
    """
    lines = [_FORMAT]
    for key in sorted(fingerprint):
        if key.startswith(_NODE_KEYS) and rule_for(key, rules) != "informative":
            lines.append(f"{key}={fingerprint[key]}")
    text = "\n".join(lines).encode("utf-8", "surrogateescape")
    return f"slurmckpt-{hashlib.sha256(text).hexdigest()[:12]}"
